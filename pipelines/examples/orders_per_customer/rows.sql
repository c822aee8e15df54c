SELECT * FROM orders WHERE amount > 0
