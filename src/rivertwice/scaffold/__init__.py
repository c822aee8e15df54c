"""A project of one's own: a definition that is guessed from sample records, and the files around it."""
