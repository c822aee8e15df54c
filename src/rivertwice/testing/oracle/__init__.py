"""The oracle: a program of its own that says what must have come out of lab_sums. It imports no room of rivertwice."""
