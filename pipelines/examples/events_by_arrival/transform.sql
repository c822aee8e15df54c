-- S8: windows over the time of handling, and how long the slowest event took to get there.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  count(*) AS events,
  max((unix_micros(handled_at) - unix_micros(at)) / 1000000) AS most_lag_s
FROM events
GROUP BY window(handled_at, '1 second')
