-- S37: postings of a day, and the sums that were asked to be paid in and out.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  account_id,
  count(*) AS postings,
  sum(CASE WHEN kind <> 'withdrawn' THEN coalesce(amount, 0) ELSE 0 END) AS asked_in,
  sum(CASE WHEN kind = 'withdrawn' THEN coalesce(amount, 0) ELSE 0 END) AS asked_out
FROM postings
GROUP BY window(posted_at, '1 day'), account_id
