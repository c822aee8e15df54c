"""Users' own Great Expectations suites: what may be written in one, what it says of rows, and what is kept of that."""
