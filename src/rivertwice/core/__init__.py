"""Settings, places, errors, time, locks, processes, retries: what every package needs."""
