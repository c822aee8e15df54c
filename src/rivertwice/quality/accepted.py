"""Which expectations Great Expectations accepted, kept so that an unchanged suite is checked without importing it (2 CPU-seconds).

`HOME/pipelines/NAME/accepted.json` names each expectation of the pipeline's suites by its type and arguments, and the version that
accepted them. Only what was accepted is kept: whatever is new, changed or wrong is asked again, and named in the library's words.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Set
from importlib.metadata import version
from typing import Any

from rivertwice.config import PipelineHome
from rivertwice.errors import RequestError
from rivertwice.store.files import read_json, replace_json

LOG = logging.getLogger(__name__)
FORMAT = 1


def question_of(kind: str, kwargs: Mapping[str, Any]) -> str:
    """Return what names an expectation's type and arguments: their SHA-256. Pure."""
    return hashlib.sha256(json.dumps([kind, kwargs], sort_keys=True).encode()).hexdigest()


def read_accepted(home: PipelineHome) -> frozenset[str]:
    """Return what this version of Great Expectations accepted; nothing if the record cannot be read: it is written again."""
    try:
        value = read_json(home.accepted)
        if value is None or value["format"] != FORMAT or value["great_expectations"] != version("great-expectations"):
            return frozenset()
        return frozenset(value["accepted"])
    except (OSError, ValueError, KeyError, TypeError, RequestError):
        return frozenset()


def write_accepted(home: PipelineHome, questions: Set[str]) -> None:
    """Keep what was accepted, in place of what is kept. A home that cannot be written keeps nothing, and each check asks."""
    value = {
        "format": FORMAT,
        "great_expectations": version("great-expectations"),
        "accepted": sorted(questions),
    }
    try:
        replace_json(home.accepted, value)
    except OSError as error:
        LOG.info("%s cannot be written, so the next check imports Great Expectations again: %s", home.accepted, error)
