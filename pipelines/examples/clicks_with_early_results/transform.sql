-- S11: clicks per ten minutes, two minutes of patience.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  count(*) AS clicks
FROM clicks
GROUP BY window(at, '10 minutes')
