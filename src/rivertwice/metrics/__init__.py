"""Measurements of a stream: figures with their units, the alerts on them, and likely causes. Reads only."""
