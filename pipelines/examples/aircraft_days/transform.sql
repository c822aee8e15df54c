SELECT
  session_window.start AS window_start,
  session_window.end AS window_end,
  tailnum,
  count(*) AS legs,
  count_if(origin = 'JFK') AS from_jfk,
  max(departed_at) AS last_departure
FROM departures
GROUP BY session_window(departed_at, '10 hours'), tailnum
