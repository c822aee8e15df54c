"""Schemas of records: Avro read and limited, compatibility, registries, and what a pipeline has pinned. No Spark here."""
