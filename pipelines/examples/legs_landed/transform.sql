-- A departure without an arrival within 16 hours stays, with NULL: it came down elsewhere.
SELECT
  d.window_start,
  d.window_end,
  d.leg,
  d.carrier,
  d.dest,
  d.departed_at,
  a.arrived_at,
  (unix_seconds(a.arrived_at) - unix_seconds(d.departed_at)) DIV 60 AS minutes,
  a.arr_delay
FROM departures AS d
LEFT JOIN arrivals AS a
  ON a.window_start = d.window_start
  AND a.leg = d.leg
  AND a.arrived_at >= d.departed_at
  AND a.arrived_at <= d.departed_at + INTERVAL 16 HOURS
