"""Kafka and its longer copy, the archive: records by exact range, gaps, claims on retention."""
