"""The demo: two stormy days of real flights through the whole loop, step by step."""
