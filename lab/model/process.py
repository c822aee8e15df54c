"""A process of the model: a generator that yields after every look and every durable effect."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rivertwice.stream.checkpoint import Goal

Steps = Generator[int, None, Any]
"""Yields the number of the point just reached; what comes after it has not happened yet."""

POINTS: list[str] = []
_NUMBERS: dict[str, int] = {}


def point(name: str) -> int:
    """Return the number of a point, declaring it at import time; every point can be crashed at."""
    if name not in _NUMBERS:
        _NUMBERS[name] = len(POINTS)
        POINTS.append(name)
    return _NUMBERS[name]


def nothing() -> Steps:
    """Do nothing."""
    yield from ()


@dataclass
class Process:
    """One process.

    Attributes:
        name: unique in a schedule, and the same in every repetition of it.
        kind: which actor it runs.
        host: 1, or 2 for a second host that shares the pipeline.
        at: the point that it has reached, -1 before its first step.
        paused: stopped by a signal; it wakes later and does not know what happened meanwhile.
        epoch: epoch of its lease, for a driver.
        renewed_s: by the forward clock, when it last renewed a lease on a store.
        fingerprint: fingerprint of the definition it loaded.
        goal: for a driver that catches up: what, and how far. asked: by a signal, to end at the next batch.
        clean: it drained, or came to its goal.
    """

    pid: int
    name: str
    kind: str
    host: int = 1
    steps: Steps = field(default_factory=nothing, repr=False)
    at: int = -1
    alive: bool = True
    paused: bool = False
    epoch: int = 0
    renewed_s: float = 0.0
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    goal: Goal | None = None
    asked: bool = False
    clean: bool = False
