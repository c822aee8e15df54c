"""What records a stream may get and what must come of them: random histories, a definition of each kind, planted faults."""
