-- S23, S25: the version that was valid at the order's time; an order without user or product stays, with NULL.
SELECT
  o.window_start,
  o.window_end,
  o.order_id,
  o.at,
  u.name AS user_name,
  u.age AS user_age,
  p.title AS product
FROM orders AS o
LEFT JOIN users AS u
  ON u.window_start = o.window_start AND u.user_id = o.user_id
  AND u.valid_from <= o.at AND (u.valid_to IS NULL OR o.at < u.valid_to)
LEFT JOIN products AS p
  ON p.window_start = o.window_start AND p.product_id = o.product_id
  AND p.valid_from <= o.at AND (p.valid_to IS NULL OR o.at < p.valid_to)
