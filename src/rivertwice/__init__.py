"""rivertwice: one pipeline definition, streamed and recomputed; every differing row has a named cause."""

__version__ = "0.1.0"
