"""Judging by executors: rows that agree on all sides are found by Spark, the others are judged where they are, in groups."""
