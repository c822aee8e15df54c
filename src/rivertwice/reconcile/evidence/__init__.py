"""What judges of result rows look at, and how each kind of windows explains a difference. Pure: no Spark, no tables."""
