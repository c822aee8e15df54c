SELECT
  window.start AS window_start,
  window.end AS window_end,
  state,
  count(*) AS orders,
  count(note) AS noted,
  sum(amount_cents) AS cents
FROM orders
GROUP BY window(changed_at, '1 hour'), state
