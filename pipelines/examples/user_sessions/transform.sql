-- S7: sessions per user: start, end, number of clicks. The end is the gap after the last click.
SELECT
  session_window.start AS window_start,
  session_window.end AS window_end,
  user_id,
  count(*) AS clicks,
  max(at) AS last_click
FROM clicks
GROUP BY session_window(at, '30 minutes'), user_id
