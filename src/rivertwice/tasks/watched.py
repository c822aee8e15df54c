"""How a stream is, in plain values: what a trigger of Airflow looks at, on the agent's host or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from croniter import croniter

from rivertwice.agent import observe_stream
from rivertwice.core import Settings
from rivertwice.definition import is_cron, parse_duration


@dataclass(frozen=True)
class Watched:
    """How a stream is: a word, a sentence, and what was last seen of it."""

    word: str
    message: str
    seen: Mapping[str, Any]

    @staticmethod
    def until(schedule: str, due_at: datetime) -> datetime:
        """Return when the run of a DAG that is due at an instant stops to watch: the next run does from there on. Pure."""
        return croniter(schedule, due_at).get_next(datetime) if is_cron(schedule) else due_at + parse_duration(schedule)

    @classmethod
    def of(cls, settings: Settings, pipeline: str, now: datetime) -> Self:
        """Return how a stream of this home is."""
        observed = observe_stream(settings, pipeline, now)
        health = observed.classify(now)
        return cls(health.word, health.message, observed.describe())
