"""Restore, upgrade, fall-back and rewind: ordered steps under one engine.

`steps` lists what each operation does, in which order, and which step is done again after an interruption. `engine` runs,
resumes, abandons and explains any of them. `record` is stored on disk. `effects` touches tables and processes for all of them;
`restore` and `rewind` add their own effects. `upgrade` is a restore with another definition, `fall_back` one with another choice.
"""
