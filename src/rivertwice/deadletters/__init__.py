"""Dead letters after they were written: who looked at each, what it should have been, and what is still open."""
