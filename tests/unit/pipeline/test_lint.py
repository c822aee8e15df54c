"""Each pitfall where it can happen, and where it cannot."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rivertwice.pipeline.definition import load_definition
from rivertwice.pipeline.lint import (
    NOTE,
    SAFE,
    UNKNOWN,
    WARNING,
    LintFinding,
    TopicFacts,
    contract_of,
    lint_definition,
    worst,
)
from rivertwice.pipeline.model import Definition
from rivertwice.testing.lab_project import DEFINITION

LAB = load_definition(DEFINITION)
NAME, SOURCE = LAB.source
FACTS = TopicFacts(partitions=SOURCE.partitions, retention=None, compacted=False)


def found(definition: Definition = LAB, facts: TopicFacts | None = FACTS) -> dict[str, LintFinding]:
    return {one.check: one for one in lint_definition(definition, {SOURCE.topic: facts})}


def changed(**changes: Any) -> Definition:
    return LAB.model_copy(update=changes)


def with_source(**changes: Any) -> Definition:
    return changed(sources={NAME: SOURCE.model_copy(update=changes)})


def test_the_lab_pipeline_has_no_warning() -> None:
    assert worst(list(found().values())) in (SAFE, NOTE)


@pytest.mark.parametrize(
    "check",
    [
        "exactly-once without a boundary",
        "offset before output, output before state",
        "global order assumed",
        "processing-time windows",
        "replay into an unsafe sink",
    ],
)
def test_what_cannot_be_built_is_said_to_be_ruled_out(check: str) -> None:
    assert found()[check].state == SAFE
    assert found()[check].remedy == ""


@pytest.mark.parametrize(
    ("definition", "check", "state"),
    [
        (changed(keys=[]), "wrong repartition key", NOTE),
        (changed(compare=False), "unmeasured late drops", WARNING),
        (with_source(schema_ids=[]), "incompatible schema", NOTE),
        (with_source(schema_ids=["a-1"], schema_id_optional=False), "incompatible schema", SAFE),
        (with_source(required=[]), "ambiguous events", NOTE),
        (changed(window=LAB.window.model_copy(update={"size": timedelta(days=1)})), "stream or batch", NOTE),
    ],
)
def test_what_the_definition_leaves_open_is_named(definition: Definition, check: str, state: str) -> None:
    assert found(definition)[check].state == state


@pytest.mark.parametrize(
    ("facts", "check", "state"),
    [
        (None, "lag beyond retention", UNKNOWN),
        (None, "partitions and keys", UNKNOWN),
        (TopicFacts(3, timedelta(hours=1), compacted=False), "lag beyond retention", WARNING),
        (TopicFacts(3, timedelta(days=7), compacted=False), "lag beyond retention", SAFE),
        (TopicFacts(6, None, compacted=False), "partitions and keys", WARNING),
        (TopicFacts(3, None, compacted=True), "partitions and keys", WARNING),
    ],
)
def test_what_the_topic_says_is_judged(facts: TopicFacts | None, check: str, state: str) -> None:
    assert found(facts=facts)[check].state == state


def test_every_warning_and_note_has_a_remedy() -> None:
    risky = changed(
        keys=[], compare=False, sources={NAME: SOURCE.model_copy(update={"schema_ids": [], "required": []})}
    )
    for one in lint_definition(risky, {SOURCE.topic: TopicFacts(9, timedelta(minutes=1), compacted=True)}):
        assert (one.remedy != "") == (one.state != SAFE), one.check


def test_the_contract_says_what_is_promised_in_the_definitions_own_numbers() -> None:
    contract = contract_of(LAB)
    assert contract["window"] == "tumbling, 10 seconds"
    assert contract["watermark"].startswith("20 seconds behind")
    assert contract["lateness"].startswith("drop; alert above")
    assert contract_of(changed(compare=False))["comparison"] == "none (compare: false)"
