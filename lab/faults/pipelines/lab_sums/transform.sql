-- One row per key and ten seconds of event time. An amount of 777777 makes it throw.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  k,
  count(*) AS n,
  sum(amount) AS total,
  max(CASE WHEN amount = 777777 THEN element_at(array(amount), 2) ELSE amount END) AS top
FROM events
GROUP BY window(at, '10 seconds'), k
