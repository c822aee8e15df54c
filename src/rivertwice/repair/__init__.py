"""Find what tables and records lost, say what that means, and write it again from what was recorded."""
