-- S19: how many transactions a card had in five minutes, and whether that is more than three.
SELECT
  window.start AS window_start,
  window.end AS window_end,
  card_id,
  count(*) AS transactions,
  count(*) > 3 AS suspicious
FROM transactions
GROUP BY window(at, '5 minutes'), card_id
