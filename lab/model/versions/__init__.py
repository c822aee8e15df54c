"""Versions of a pipeline in the protocol model: two live streams over one log, one table that consumers read, and what joins them."""
