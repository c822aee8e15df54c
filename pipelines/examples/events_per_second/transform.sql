-- S9: events per second; the watermark says which seconds are over.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  count(*) AS events
FROM events
GROUP BY window(at, '1 second')
