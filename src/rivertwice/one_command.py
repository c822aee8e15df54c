"""Whether this process is one command of a person: `rivertwice VERB`. Drivers, jobs, the agent and users' programs are not.

A command may defer what only a user's own code could ask for (`store.arrow`), and gives up soon on a broker that is down
(`log.reach`). Nothing else may depend on it.
"""

from __future__ import annotations

_SAID: list[bool] = []


def say_one_command() -> None:
    """Say that this process is one command of a person."""
    _SAID.append(True)


def is_one_command() -> bool:
    """Say whether this process is one command of a person."""
    return bool(_SAID)
