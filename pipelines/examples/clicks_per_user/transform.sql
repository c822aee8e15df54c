-- S10: five minutes, aligned to the epoch.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  user,
  count(*) AS clicks
FROM clicks
GROUP BY window(at, '5 minutes'), user
