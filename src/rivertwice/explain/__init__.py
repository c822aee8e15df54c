"""One number that is served, explained: what it is made of, who made it, why it changed, and what to do next."""
