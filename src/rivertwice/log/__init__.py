"""The log: Kafka topics plus the archive. Only this package connects to Kafka."""
