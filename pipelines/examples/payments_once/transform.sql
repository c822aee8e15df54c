-- S15: a payment counts unless one of the same id lies in the ten minutes before it, or at its time and before it in the log.
SELECT window_start, window_end, payment_id, at, user_id, amount
FROM (
  SELECT
    *,
    lag(at) OVER (PARTITION BY window_start, payment_id ORDER BY at, record) AS before
  FROM payments
)
WHERE before IS NULL OR before <= at - INTERVAL 10 MINUTES
