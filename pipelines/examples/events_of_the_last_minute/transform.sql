-- S6: per event, how many events of its user lie in the 60 seconds up to it, and which; events of the same time see each other.
SELECT
  one.window_start,
  one.window_end,
  one.user_id,
  one.at,
  one.name,
  count(*) AS events,
  array_join(array_sort(collect_list(seen.name)), '') AS names
FROM events AS one
JOIN events AS seen
  ON seen.window_start = one.window_start
  AND seen.user_id = one.user_id
  AND seen.at <= one.at
  AND seen.at > one.at - INTERVAL 60 SECONDS
GROUP BY one.window_start, one.window_end, one.user_id, one.at, one.name, one.record
