"""Report-only benches: ratios of two things run interleaved in one go, CPU-seconds before wall time."""
