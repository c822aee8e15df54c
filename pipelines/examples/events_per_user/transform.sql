-- S10: out of order by 10 s, late by at most a minute more: one delay of 70 s.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  user,
  count(*) AS events
FROM events
GROUP BY window(at, '5 minutes'), user
