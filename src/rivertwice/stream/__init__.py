"""The driver: one micro-batch is one commit."""
