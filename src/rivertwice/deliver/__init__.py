"""Result rows in other systems: sinks, and the fast path."""
