"""The demo: two stormy days of real flights through the whole loop, told step by step."""
