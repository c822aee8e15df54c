-- S10: what rows.sql leaves out, an order of nothing or less, keeps its address and is counted as excluded.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  customer,
  count(*) AS orders,
  sum(amount) AS total
FROM orders
GROUP BY window(at, '1 minute'), customer
