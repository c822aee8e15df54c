-- S10: out of order by 5 s, late by at most a minute more: one delay of 65 s.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  page,
  count(*) AS page_views
FROM page_views
GROUP BY window(at, '1 minute'), page
