"""What a pipeline says: its YAML, SQL and schemas, fingerprint, bundle, lint. It needs no Spark."""
