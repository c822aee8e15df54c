-- S22: a click counts for an impression of the same ad and user, not before it and at most an hour after it; the first one counts.
SELECT window_start, window_end, impression_id, ad_id, user_id, shown_at, click_id, seconds_to_click
FROM (
  SELECT
    i.window_start,
    i.window_end,
    i.impression_id,
    i.ad_id,
    i.user_id,
    i.at AS shown_at,
    c.click_id,
    unix_seconds(c.at) - unix_seconds(i.at) AS seconds_to_click,
    row_number() OVER (PARTITION BY i.window_start, i.record ORDER BY c.at, c.record) AS place
  FROM impressions AS i
  LEFT JOIN clicks AS c
    ON c.window_start = i.window_start
    AND c.ad_id = i.ad_id
    AND c.user_id = i.user_id
    AND c.at >= i.at
    AND c.at <= i.at + INTERVAL 1 HOUR
)
WHERE place = 1
