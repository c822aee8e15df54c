"""The control job: the script that people write. A program of its own that imports no room of rivertwice."""
