"""Compares what is served with the log: verdicts, causes, the gate."""
