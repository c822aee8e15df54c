"""What happened and what counts: lineage, ledger, sequence, dead letters, `served`, and the result tables."""
