"""Suites of expectations over result rows, judged by Great Expectations."""
