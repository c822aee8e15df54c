"""The oracle: a program of its own that computes what lab_sums must have emitted. It imports no room of rivertwice."""
