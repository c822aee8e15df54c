"""Modules that pods and containers run by name."""
