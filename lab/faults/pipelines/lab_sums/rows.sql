-- Negative amounts take no part in any window: each of them is excluded, by its address.
SELECT * FROM events WHERE amount >= 0
