"""The command line's verbs: thin. Each command calls one function of a room and prints what it returns."""
