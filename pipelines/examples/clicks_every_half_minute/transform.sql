-- S5: clicks of the last minute, every half minute.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  count(*) AS clicks
FROM clicks
GROUP BY window(at, '1 minute', '30 seconds')
