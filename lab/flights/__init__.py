"""The example data: flights from New York in 2013, as records of a log, in the order in which they really departed."""
