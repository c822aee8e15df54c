"""What Spark makes of a definition: sessions, decoding, compilers, folds, checks of plans, cases."""
