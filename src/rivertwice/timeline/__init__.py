"""Timelines, ledger and head: which batches count, and what is served."""
