"""The log: Kafka topics plus the archive. Only this room speaks to Kafka."""
