"""Windows computed again, audited, published; the first load."""
