"""How a run of tests goes: which tests it takes, what its processes share, the one warm Spark, waits that have an end."""
