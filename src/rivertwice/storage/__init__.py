"""Whole objects, leases and Delta tables, in a folder or on S3."""
