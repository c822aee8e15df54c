"""Each pitfall where it can happen, and where it cannot."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from homes.project import EXAMPLES
from lab.faults.lab_project import DEFINITION
from rivertwice.cli.main import cli
from rivertwice.core.instants import utc_now
from rivertwice.definition.bundle import build_bundle
from rivertwice.definition.definition import load_definition
from rivertwice.definition.delivery_section import KafkaDelivery
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.definition.lint import contract_of, lint_definition, lint_judgement
from rivertwice.definition.lint_finding import LintFinding, LintLevel, TopicFacts, worst
from rivertwice.definition.model import Definition
from rivertwice.definition.parts import OutputColumn
from rivertwice.definition.source import Source
from rivertwice.definition.stream_pins import StreamPins
from rivertwice.engine.checked import CheckReport, Judgement

LAB = load_definition(DEFINITION)
NAME, SOURCE = LAB.source
FACTS = TopicFacts(partitions=SOURCE.partitions, retention=None, compacted=False)
HELD = CheckReport("b", (), (), {}, utc_now())
SESSION = load_definition(EXAMPLES / "user_sessions")
FOLD = load_definition(EXAMPLES / "account_ledger")


def found(
    definition: Definition = LAB, facts: TopicFacts | None = FACTS, verdict: CheckReport | None = HELD
) -> dict[str, LintFinding]:
    return {one.check: one for one in lint_definition(definition, dict.fromkeys(definition.topics, facts), verdict)}


def changed(**changes: Any) -> Definition:
    return LAB.model_copy(update=changes)


def with_source(**changes: Any) -> Definition:
    return changed(sources={NAME: SOURCE.model_copy(update=changes)})


def test_the_lab_pipeline_has_nothing_broken() -> None:
    assert worst(list(found().values())) in (LintLevel.HOLDS, LintLevel.NOT_CHECKED)


@pytest.mark.parametrize("check", ["global order assumed", "processing-time windows", "wrong repartition key"])
def test_what_only_a_plan_shows_is_not_checked_without_one(check: str) -> None:
    assert found()[check].state == LintLevel.HOLDS
    for verdict in (None, CheckReport("b", ("no such column",), (), {}, utc_now())):
        one = found(verdict=verdict)[check]
        assert (one.state, f"`rivertwice lint {LAB.name}`" in one.remedy) == (LintLevel.NOT_CHECKED, True)


@pytest.mark.proves("lab/docs/scenarios.md#scenarios")
def test_what_a_definition_cannot_tell_is_not_called_safe() -> None:
    one = found()["offset before output, output before state"]
    assert (one.state, f"`rivertwice reconcile {LAB.name}`" in one.remedy) == (LintLevel.NOT_CHECKED, True)
    assert found(SESSION)["unbounded state"].state == found(FOLD)["unbounded state"].state == LintLevel.NOT_CHECKED


def test_numbers_that_are_rounded_are_warned_of_with_a_way_to_count_them() -> None:
    """Which fingerprints change: none as long as the definition does not say so."""
    fields = {**SOURCE.schema_, "fare": "decimal(10,2)"}
    rounded, exact = with_source(schema_=fields), with_source(schema_=fields, decimals="exact")
    one = found(rounded)["numbers that are rounded"]
    assert (one.state, "fare" in one.told, "`decimals: exact`" in one.remedy) == (LintLevel.WARNS, True, True)
    assert found(exact)["numbers that are rounded"].state == LintLevel.HOLDS
    assert "numbers that are rounded" not in found()
    assert "decimals" not in fingerprint_of(rounded).components
    assert fingerprint_of(with_source(decimals="exact")).decode == fingerprint_of(LAB).decode
    assert fingerprint_of(exact).decode != fingerprint_of(rounded).decode
    assert fingerprint_of(exact).state == fingerprint_of(rounded).state


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": {**SOURCE.schema_, "fare": "decimal(38,2)"}}, "at most 32 digits"),
        ({"format": "protobuf"}, "is for JSON"),
    ],
)
def test_decimals_that_cannot_be_exact_are_refused(changes: dict[str, Any], said: str) -> None:
    plain = SOURCE.model_dump(by_alias=True, exclude_defaults=True) | {"decimals": "exact"}
    with pytest.raises(ValueError, match=said):
        Source.model_validate({**plain, **changes})


def test_a_key_that_does_not_divide_is_broken() -> None:
    one = found(verdict=CheckReport("b", (), (), {"k": "it has the same value in every row"}, utc_now()))
    assert (one["wrong repartition key"].state, "same value" in one["wrong repartition key"].told) == (
        LintLevel.BROKEN,
        True,
    )


def test_the_clock_and_the_order_are_broken_where_nothing_refuses_them() -> None:
    sql = LAB.transform_sql.replace("count(*)", "count_if(first(now()) IS NOT NULL)", 1)
    free = found(changed(compare=False, transform_sql=sql))
    assert (free["processing-time windows"].state, free["global order assumed"].state) == (
        LintLevel.BROKEN,
        LintLevel.BROKEN,
    )
    assert "now" in free["processing-time windows"].told


@pytest.mark.proves("lab/docs/scenarios.md#scenarios")
def test_a_sink_that_claims_too_much_is_broken_and_one_may_repeat() -> None:
    plain = KafkaDelivery(to="kafka", topic="sms", transactions=False, guarantee="at_least_once")
    weak = LAB.model_copy(update={"deliver": {"sms": plain}})
    assert found(weak)["exactly-once without a boundary"].state == LintLevel.HOLDS
    unsafe = found(weak)["replay into an unsafe sink"]
    assert (unsafe.state, "sms (at_least_once)" in unsafe.told) == (LintLevel.NOT_CHECKED, True)
    bold = LAB.model_copy(update={"deliver": {"sms": plain.model_copy(update={"guarantee": "exactly_once"})}})
    assert found(bold)["exactly-once without a boundary"].state == LintLevel.BROKEN


def test_a_judgement_says_what_was_looked_at() -> None:
    def states(judged: Judgement) -> list[str]:
        return [one.state for one in lint_judgement(judged)]

    bundle = build_bundle(DEFINITION)
    assert states(Judgement("p", bundle, HELD, (), ())) == [LintLevel.HOLDS]
    assert states(Judgement("p", bundle, HELD, (), ("it throws on made-up rows",))) == [
        LintLevel.HOLDS,
        LintLevel.NOT_CHECKED,
    ]
    assert states(Judgement("p", bundle, None, (), ("no Spark",))) == [LintLevel.NOT_CHECKED]
    assert states(Judgement("p", None, None, ("no YAML", "no SQL"), ())) == [LintLevel.BROKEN, LintLevel.BROKEN]
    fold = Judgement("p", build_bundle(EXAMPLES / "account_ledger"), HELD, (), ())
    assert states(fold) == [LintLevel.HOLDS, LintLevel.NOT_CHECKED]  # a fold is run by its cases alone


@pytest.mark.parametrize("name", sorted(path.parent.name for path in EXAMPLES.glob("*/pipeline.yaml")))
def test_whatever_was_not_checked_names_a_command_that_there_is(name: str) -> None:
    definition = load_definition(EXAMPLES / name)
    for one in lint_definition(definition, dict.fromkeys(definition.topics), None):
        assert (one.remedy != "") == (one.state != LintLevel.HOLDS), one.check
        if one.state == LintLevel.NOT_CHECKED:
            verbs = re.findall(r"`rivertwice ([a-z]+)", one.remedy)
            assert verbs, one.check
            assert set(verbs) <= set(cli.commands), one.remedy


@pytest.mark.parametrize(
    ("definition", "check", "state"),
    [
        (changed(keys=[]), "wrong repartition key", LintLevel.NOT_CHECKED),
        (changed(compare=False), "unmeasured late drops", LintLevel.BROKEN),
        (with_source(schema_ids=[]), "incompatible schema", LintLevel.NOT_CHECKED),
        (with_source(schema_ids=["a-1"], schema_id_optional=False), "incompatible schema", LintLevel.HOLDS),
        (with_source(required=[]), "ambiguous events", LintLevel.NOT_CHECKED),
        (
            changed(window=LAB.window.model_copy(update={"size": timedelta(days=1)})),
            "stream or batch",
            LintLevel.NOT_CHECKED,
        ),
    ],
)
def test_what_the_definition_leaves_open_is_named(definition: Definition, check: str, state: str) -> None:
    assert found(definition)[check].state == state


ERRORS = "a value on which the code throws"


def test_what_can_stop_the_stream_by_a_value_is_warned_of() -> None:
    assert found(verdict=None)[ERRORS].state == LintLevel.NOT_CHECKED  # the sums were not looked at
    assert found(verdict=HELD)[ERRORS].state == LintLevel.HOLDS
    stops = found(changed(on_error="stop"), verdict=HELD)[ERRORS]
    assert (stops.state, "leave on_error out" in stops.remedy) == (LintLevel.WARNS, True)
    risk = found(verdict=replace(HELD, risks=("line 7, column 3: sum(amount) overflows",)))[ERRORS]
    assert (risk.state, "sum(amount) overflows" in risk.told, "range rules" in risk.remedy) == (
        LintLevel.WARNS,
        True,
        True,
    )
    assert found(FOLD)[ERRORS].state == (LintLevel.HOLDS if "error" in FOLD.columns else LintLevel.WARNS)
    assert (
        found(
            FOLD.model_copy(
                update={
                    "columns": dict(FOLD.columns) | {"error": OutputColumn()},
                    "types": {**FOLD.types, "error": "string"},
                }
            )
        )[ERRORS].state
        == LintLevel.HOLDS
    )


@pytest.mark.parametrize(
    ("facts", "check", "state"),
    [
        (None, "lag beyond retention", LintLevel.NOT_CHECKED),
        (None, "partitions and keys", LintLevel.NOT_CHECKED),
        (TopicFacts(3, timedelta(hours=1), compacted=False), "lag beyond retention", LintLevel.BROKEN),
        (TopicFacts(3, timedelta(days=7), compacted=False), "lag beyond retention", LintLevel.HOLDS),
        (TopicFacts(6, None, compacted=False), "partitions and keys", LintLevel.BROKEN),
        (TopicFacts(3, None, compacted=True), "partitions and keys", LintLevel.BROKEN),
        (
            TopicFacts(3, None, compacted=True, compacted_after=timedelta(minutes=59)),
            "partitions and keys",
            LintLevel.BROKEN,
        ),
        (
            TopicFacts(3, None, compacted=True, compacted_after=timedelta(hours=1)),
            "partitions and keys",
            LintLevel.WARNS,
        ),
    ],
)
def test_what_the_topic_says_is_judged(facts: TopicFacts | None, check: str, state: str) -> None:
    assert found(facts=facts)[check].state == state


DAY_MS = 86_400_000
EVEN = {0: 500, 1: 400, 2: 450}


def facts_of(held: dict[int, int], middles: dict[int, int], span_days: int = 60) -> TopicFacts:
    return TopicFacts(3, None, compacted=False, held=held, middles_ms=middles, span_ms=span_days * DAY_MS)


@pytest.mark.parametrize(
    ("facts", "state", "part_of_text"),
    [
        (None, LintLevel.NOT_CHECKED, "Kafka did not tell"),
        (facts_of({}, {}), LintLevel.HOLDS, "like numbers"),
        (
            facts_of(EVEN, {0: 0, 1: 60_000, 2: 5 * DAY_MS}),
            LintLevel.HOLDS,
            "like times",
        ),  # below a tenth of the topic's time
        (facts_of(EVEN, {0: 0, 1: 60_000, 2: 20 * DAY_MS + 3_600_000}), LintLevel.WARNS, "up to 20 days 1 h apart"),
        (facts_of(EVEN, {0: 0, 1: 5_000}, span_days=0), LintLevel.HOLDS, "like times"),  # within the watermark
        (
            facts_of({**EVEN, 2: 20}, {0: 0, 1: 0, 2: 20 * DAY_MS}),
            LintLevel.HOLDS,
            "like times",
        ),  # of 20 records, chance
        (facts_of({0: 50, 1: 700, 2: 30}, {}), LintLevel.WARNS, "partition 1 of"),
        (facts_of({0: 0, 1: 9, 2: 0}, {}), LintLevel.HOLDS, "like numbers"),
    ],
)
def test_partitions_that_drift_apart_are_warned_of(facts: TopicFacts | None, state: str, part_of_text: str) -> None:
    finding = found(facts=facts)["skewed partitions"]
    assert finding.state == state
    assert part_of_text in finding.told


def test_a_skew_that_nothing_holds_together_names_the_setting() -> None:
    skewed = facts_of(EVEN, {0: 0, 1: 20 * DAY_MS})
    assert found(facts=skewed)["skewed partitions"].remedy.startswith("nothing, for stream.catch_up_share is 0.25")
    off = changed(stream=LAB.stream.model_copy(update={"catch_up_share": 0.0}))
    assert "remove stream.catch_up_share: 0" in found(off, skewed)["skewed partitions"].remedy


def test_a_warning_is_worse_than_what_was_not_checked_and_breaks_nothing() -> None:
    states = [LintFinding("a", state, "") for state in (LintLevel.HOLDS, LintLevel.NOT_CHECKED, LintLevel.WARNS)]
    assert worst(states) == LintLevel.WARNS
    assert worst([*states, LintFinding("a", LintLevel.BROKEN, "")]) == LintLevel.BROKEN


def test_every_warning_and_note_has_a_remedy() -> None:
    risky = changed(
        keys=[], compare=False, sources={NAME: SOURCE.model_copy(update={"schema_ids": [], "required": []})}
    )
    for one in lint_definition(risky, {SOURCE.topic: TopicFacts(9, timedelta(minutes=1), compacted=True)}):
        assert (one.remedy != "") == (one.state != LintLevel.HOLDS), one.check


def test_the_contract_says_what_is_promised_in_the_definitions_own_numbers() -> None:
    contract = contract_of(LAB)
    assert contract["window"] == "tumbling, 10 seconds"
    assert contract["watermark"].startswith("20 seconds behind")
    assert contract["lateness"].startswith("drop; alert above")
    assert contract_of(changed(compare=False))["comparison"] == "none (compare: false)"


@pytest.mark.parametrize(
    ("stream", "state", "said"),
    [
        (
            {"mode": "scheduled", "schedule": "1 hour"},
            LintLevel.HOLDS,
            "by schedule (1 hour): a window's rows come with",
        ),
        ({"mode": "scheduled", "assets": ["landing"]}, LintLevel.HOLDS, "by schedule (none, and events of landing)"),
        ({"mode": "scheduled", "schedule": "1 hour", "trigger": "10 s"}, LintLevel.WARNS, "stream.trigger is not used"),
    ],
)
def test_when_rows_of_a_stream_by_schedule_come_is_said(stream: dict[str, object], state: str, said: str) -> None:
    finding = found(changed(stream=StreamPins.model_validate(stream)))["results between two runs"]
    assert finding.state == state
    assert said in finding.told
    assert "results between two runs" not in found()
