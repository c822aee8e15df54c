-- S19: what one record tells. `record` says which it was, so that a row that comes twice is known.
SELECT record, card_id, tx, amount, score, at
FROM transactions
WHERE score > 0.9
