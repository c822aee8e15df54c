"""Retention as correctness: who needs the log, how long Kafka keeps it, the archive ahead of it, and gaps."""
