-- One row per origin and scheduled hour. delay_* are NULL where every flight of the hour was cancelled.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  origin,
  count(*) AS flights,
  count_if(cancelled) AS cancelled,
  sum(dep_delay) AS delay_sum,
  -- Decimal, not double: the same digits whatever the order of the rows.
  CAST(
    CAST(sum(dep_delay) AS DECIMAL(18, 0)) / nullif(CAST(count(dep_delay) AS DECIMAL(12, 0)), 0) AS DECIMAL(12, 4)
  ) AS delay_mean,
  max(dep_delay) AS delay_max,
  percentile(dep_delay, 0.95) AS delay_p95,
  count_if(dep_delay > 15) AS late_15
FROM flights
GROUP BY window(sched_dep, '1 hour'), origin
