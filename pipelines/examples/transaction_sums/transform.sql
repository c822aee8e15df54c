-- S1: sums of amounts in windows of five seconds, though transactions come out of order.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  count(*) AS transactions,
  sum(amount) AS total
FROM transactions
GROUP BY window(at, '5 seconds')
