"""rivertwice: one pipeline definition, streamed and recomputed; every differing row has a named cause."""
