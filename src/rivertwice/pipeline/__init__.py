"""The definition of a pipeline, and its compilation for stream and for batch."""
