"""Where bytes lie: local folder, S3, Delta tables."""
