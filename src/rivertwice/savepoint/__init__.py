"""Copies of the checkpoint: taken, proved, pruned; restore, upgrade, fall-back and rewind as operations of steps."""
