SELECT
  window.start AS window_start,
  window.end AS window_end,
  currency,
  count(*) AS orders,
  count(note) AS noted,
  sum(amount) AS total
FROM orders
GROUP BY window(placed_at, '1 hour'), currency
