"""A stream, backfills and an agent's view in memory: the product's pure decisions run over them, thousands of times."""
