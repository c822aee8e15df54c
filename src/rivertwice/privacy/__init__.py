"""Privacy: a person's key is replaced everywhere in the platform, so that counts by key stay comparable."""
