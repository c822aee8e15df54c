-- S4: page views per minute and address.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  url,
  count(*) AS views
FROM views
GROUP BY window(at, '60 seconds'), url
