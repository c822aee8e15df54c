"""Storage: local folders, S3, Delta tables."""
