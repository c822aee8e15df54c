-- S9: readings per second. Heartbeats move the watermark and are counted nowhere (rows.sql).
SELECT
  window.start AS window_start,
  window.end AS window_end,
  count(*) AS readings
FROM readings
GROUP BY window(at, '5 seconds')
