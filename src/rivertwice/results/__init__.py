"""Results in hand: rows of what is served and stored, for people, for SQL, for files and for Python. Reads only."""
