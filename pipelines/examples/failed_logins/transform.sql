-- S40: failures of the user in the ten minutes up to each failure, itself counted; the tenth minute's bound is outside.
SELECT window_start, window_end, login_id, user_id, at, failures
FROM (
  SELECT
    *,
    count(*) OVER (
      PARTITION BY window_start, user_id ORDER BY unix_micros(at)
      RANGE BETWEEN 599999999 PRECEDING AND CURRENT ROW
    ) AS failures
  FROM logins
  WHERE NOT ok
)
WHERE failures > 3
