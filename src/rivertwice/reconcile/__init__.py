"""Proof-carrying reconciliation: re-derive the ledger, compare, and name the cause of every difference."""
