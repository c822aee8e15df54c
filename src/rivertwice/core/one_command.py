"""Whether this process is one command of a person: `rivertwice VERB`. Drivers, jobs, the agent and users' programs are not.

A command may defer what only a user's own code could ask for (`storage.snapshot`), fails soon if the broker is down (`log.reach`), and
prints an error of Spark once, in its own words (`engine.session`). Nothing else may depend on it.
"""

from __future__ import annotations

_SAID: list[bool] = []
_VERBOSE: list[bool] = []


def say_one_command() -> None:
    """Say that this process is one command of a person."""
    _SAID.append(True)


def is_one_command() -> bool:
    """Say whether this process is one command of a person."""
    return bool(_SAID)


def say_verbose() -> None:
    """Say that the person asked for stacks (`--debug`)."""
    _VERBOSE.append(True)


def shows_stacks() -> bool:
    """Say whether what Spark's JVM logs is shown: in the log of a driver or a job, and in a command if the person asked for it."""
    return bool(_VERBOSE) or not is_one_command()
