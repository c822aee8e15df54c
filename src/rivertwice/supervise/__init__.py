"""The agent: observe, decide, act."""
