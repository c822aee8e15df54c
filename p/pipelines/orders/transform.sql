-- One row per window and key. The stream runs this text, and so does every recompute.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  `user`,
  count(*) AS records,
  min(amount) AS amount_min,
  max(amount) AS amount_max
FROM s
GROUP BY window(at, '15 minutes'), `user`
