"""Restore, upgrade, fall-back and rewind: ordered steps under one engine.

`steps` says what each operation does, in which order, and which step is done again after an interruption. `engine` runs,
resumes, abandons and explains any of them. `record` is what stands on disk. `effects` touches tables and processes for all;
`restore` and `rewind` add what is theirs. `upgrade` and `fall_back` are restores with another definition, or another choice.
"""
