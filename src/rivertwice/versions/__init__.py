"""Versions of a pipeline's definition that run beside each other: a new one proves itself before it serves."""
