-- S39: 0 < purchase - login < 300 s, same user, another country.
SELECT
  p.window_start,
  p.window_end,
  p.action_id AS purchase_id,
  l.action_id AS login_id,
  p.user_id,
  p.at AS purchased_at,
  l.country AS login_country,
  p.country AS purchase_country
FROM actions AS p
JOIN actions AS l
  ON l.window_start = p.window_start
  AND l.user_id = p.user_id
  AND l.kind = 'login'
  AND l.country <> p.country
  AND l.at < p.at
  AND l.at > p.at - INTERVAL 300 SECONDS
WHERE p.kind = 'purchase'
