"""Real streams: a project, a home and a topic of the test's own on the run's broker, and the driver that reads it."""
