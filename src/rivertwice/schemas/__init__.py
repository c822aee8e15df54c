"""Schemas of records: reading and limits, compatibility, registries, and a pipeline's pinned schemas. No Spark here."""
