-- S23, S26: the customer's row at the order's time; none before its first and none after its delete.
SELECT
  o.window_start,
  o.window_end,
  o.order_id,
  o.at,
  c.name AS customer,
  c.id IS NOT NULL AS known
FROM orders AS o
LEFT JOIN customers AS c
  ON c.window_start = o.window_start AND c.id = o.customer_id
  AND c.valid_from <= o.at AND (c.valid_to IS NULL OR o.at < c.valid_to)
