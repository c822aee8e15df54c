"""The control job: the script people write. A program of its own that imports no room of rivertwice."""
