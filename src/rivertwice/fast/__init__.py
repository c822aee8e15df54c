"""The fast path: rows of single records, Kafka to Kafka within milliseconds, compared with the log afterwards."""
