-- S5: clicks of the last five minutes, every minute.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  count(*) AS clicks
FROM clicks
GROUP BY window(at, '5 minutes', '1 minute')
