-- What is not known (an aircraft that the table lacks, an hour before the first observation) stays NULL; no flight is lost.
SELECT
  f.window_start,
  f.window_end,
  f.carrier,
  f.flight,
  f.origin,
  f.sched_dep,
  f.dep_delay,
  a.name AS airline,
  p.manufacturer,
  p.model,
  p.seats,
  w.observed_at,
  w.temp,
  w.wind_speed,
  w.precip,
  w.visib
FROM flights AS f
LEFT JOIN airlines AS a
  ON a.window_start = f.window_start AND a.carrier = f.carrier
  AND a.valid_from <= f.sched_dep AND (a.valid_to IS NULL OR f.sched_dep < a.valid_to)
LEFT JOIN planes AS p
  ON p.window_start = f.window_start AND p.tailnum = f.tailnum
  AND p.valid_from <= f.sched_dep AND (p.valid_to IS NULL OR f.sched_dep < p.valid_to)
LEFT JOIN weather AS w
  ON w.window_start = f.window_start AND w.origin = f.origin
  AND w.valid_from <= f.sched_dep AND (w.valid_to IS NULL OR f.sched_dep < w.valid_to)
