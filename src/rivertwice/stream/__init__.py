"""The streaming driver and its one-commit sink."""
