-- One row per key and ten seconds of event time.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  k,
  count(*) AS n,
  sum(amount) AS total,
  max(amount) AS top
FROM events
GROUP BY window(at, '10 seconds'), k
