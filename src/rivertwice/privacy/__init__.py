"""Privacy: a person's key is replaced wherever the platform keeps it, so that what was counted stays comparable."""
