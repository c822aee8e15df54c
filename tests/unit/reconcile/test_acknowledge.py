"""A person says why nothing can be compared: it holds for that head and those reasons, and for nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from homes.project import REPOSITORY
from rivertwice.cli.main import cli
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import to_iso, utc_now
from rivertwice.core.settings import Settings
from rivertwice.reconcile.acknowledgements import read_acknowledgements, reasons_of, select_acknowledged
from rivertwice.reconcile.gate import Gate, GateInput, decide_gate
from rivertwice.reconcile.model import OLDER, Account, RowId, RowVerdict
from rivertwice.reconcile.results import Stamp, store_run, stored_verdicts
from rivertwice.storage.places import open_store

P = "flight_delays"
NOW = datetime(2026, 11, 25, tzinfo=UTC)
MIXED = "mixed: more than one definition read or emitted the window"
GAP = "gap: flights-0 offsets 10 to 20, read by batch 3 of t1, is in neither Kafka nor the archive"
Command = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    return Settings(REPOSITORY, tmp_path / "home").pipeline(P)


@pytest.fixture
def command(tmp_path: Path) -> Command:
    options = ["--output", "json", "--project", str(REPOSITORY), "--home", str(tmp_path / "home")]
    return lambda *words: CliRunner().invoke(cli, [*options, *words])


def verdicts(*reasons: str, pair: str = "stream", verdict: str = "NOT_COMPARABLE") -> list[RowVerdict]:
    rows = [
        RowId(hour, hour + 3_600_000, '{"origin": "JFK"}') for hour in range(0, 3_600_000 * len(reasons), 3_600_000)
    ]
    return [RowVerdict(pair, row, verdict, reason, "both") for row, reason in zip(rows, reasons, strict=True)]


def judge(home: PipelineHome, found: list[RowVerdict], timeline: str = "t1", now: datetime | None = None) -> Gate:
    """Decide the gate of a run, as `run.reconcile` does."""
    reasons = reasons_of((one.pair, one.verdict, one.presence, one.reason) for one in found)
    known = select_acknowledged(read_acknowledgements(home), timeline, reasons, now or utc_now())
    counts: dict[str, dict[str, int]] = {}
    for one in found:
        own = counts.setdefault(one.pair, {})
        own[one.verdict] = own.get(one.verdict, 0) + 1
    return decide_gate(GateInput(counts, Account(), {}, 0.05, acknowledged=known))


def reconcile(home: PipelineHome, found: list[RowVerdict], run: str = "r1", timeline: str = "t1") -> Gate:
    """Store a run with these verdicts, and return its gate."""
    gate = judge(home, found, timeline)
    store(home, found, gate.to_json(), run, timeline)
    return gate


def store(
    home: PipelineHome, found: list[RowVerdict], gate: Mapping[str, Any], run: str = "r1", timeline: str = "t1"
) -> None:
    """Store a run with these verdicts and this gate."""
    summary = {"counts": {}, "balance": {}, "late_by_partition": {}, "gate": gate, "duration_s": 1.0}
    store_run(home, Stamp(run, P, NOW, timeline, 9, "b1", 3, {}), stored_verdicts(found), [], summary)


def kinds(gate: Gate) -> list[tuple[str, str]]:
    return [(alert.severity, alert.kind) for alert in gate.alerts]


def test_an_acknowledged_run_passes_with_a_warning_that_says_who_and_why(home: PipelineHome, command: Command) -> None:
    found = verdicts(MIXED, MIXED, MIXED)
    assert kinds(reconcile(home, found)) == [("critical", "nothing_compared")]
    made = command("verdicts", P, "--accept", "--reason", "upgrade of 24 November")
    assert made.exit_code == 0, made.output
    one = json.loads(made.stdout)
    assert (one["timeline"], one["run"], one["reasons"]) == ("t1", "r1", {"stream": [MIXED]})
    assert one["by"]
    gate = judge(home, [*found, *verdicts(MIXED)])
    assert gate.passed
    assert kinds(gate) == [("warning", "not_comparable")]
    assert f"as accepted by {one['id']} by {one['by']} on 20" in gate.alerts[0].message
    assert gate.alerts[0].message.endswith("upgrade of 24 November")
    assert [each["id"] for each in json.loads(command("verdicts", P, "--accepted").stdout)] == [one["id"]]


def test_an_acknowledgement_covers_its_head_reason_and_pair_alone(home: PipelineHome, command: Command) -> None:
    reconcile(home, verdicts(MIXED))
    command("verdicts", P, "--accept", "--reason", "upgrade")
    assert judge(home, verdicts(MIXED)).passed
    failing = [("critical", "nothing_compared")]
    assert kinds(judge(home, verdicts(MIXED), timeline="t2")) == failing
    assert kinds(judge(home, verdicts(MIXED, GAP))) == failing
    assert kinds(judge(home, verdicts(MIXED, pair="served"))) == failing
    assert kinds(judge(home, [*verdicts(MIXED), *verdicts("", verdict="DEFECT", pair="served")])) == [
        ("warning", "not_comparable"),
        ("critical", "defect"),
    ]


def test_a_row_that_nobody_has_to_compare_is_no_new_reason() -> None:
    older = RowVerdict("stream", RowId(0, 1, "{}"), "NOT_COMPARABLE", "not the newest row of its key", OLDER)
    found = [*verdicts(MIXED), older]
    assert reasons_of((one.pair, one.verdict, one.presence, one.reason) for one in found) == {"stream": {MIXED}}


def test_it_ends_by_date_and_by_hand_and_says_so(home: PipelineHome, command: Command) -> None:
    reconcile(home, verdicts(MIXED))
    tomorrow = utc_now() + timedelta(days=1)
    command("verdicts", P, "--accept", "--reason", "upgrade", "--until", to_iso(tomorrow))
    assert judge(home, verdicts(MIXED), now=tomorrow - timedelta(seconds=2)).passed
    assert not judge(home, verdicts(MIXED), now=tomorrow + timedelta(seconds=2)).passed
    (one,) = json.loads(command("verdicts", P, "--accepted").stdout)
    ended = command("verdicts", P, "--end", one["id"])
    assert ended.exit_code == 0, ended.output
    (after,) = json.loads(command("verdicts", P, "--accepted").stdout)
    assert after["ended_at"] is not None
    assert after["ended_by"] == one["by"]
    assert (after["why"], after["at"]) == (one["why"], one["at"])
    assert not judge(home, verdicts(MIXED)).passed


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--accept", "--reason", "x"), 1, "has no alert nothing_compared"),
        (("--accept", "--reason", "x", "--until", "2020-01-01"), 1, "has no alert nothing_compared"),
        (("--end", "ak-00000000"), 1, "has no acceptance 'ak-00000000'; there are: none"),
        (("--accept",), 2, "give one of --accept --reason TEXT"),
        (("--reason", "x"), 2, "give one of --accept --reason TEXT"),
        (("--accepted", "--until", "2026-01-01"), 2, "give one of"),
        (("--accept", "--reason", "x", "--accepted"), 2, "give one of"),
        (("--accept", "--reason", "x", "--pair", "served"), 2, "--pair does not go with --accept"),
    ],
)
def test_what_cannot_be_acknowledged_is_refused(
    home: PipelineHome, command: Command, words: tuple[str, ...], code: int, said: str
) -> None:
    reconcile(home, verdicts("", verdict="AGREES"))
    done = command("verdicts", P, *words)
    assert (done.exit_code, said in done.output) == (code, True), done.output
    assert read_acknowledgements(home) == []


def test_a_past_date_and_a_pipeline_without_a_reconcile_are_refused(home: PipelineHome, command: Command) -> None:
    assert "was never reconciled" in command("verdicts", P, "--accept", "--reason", "x").output
    reconcile(home, verdicts(MIXED))
    assert (
        "has passed, so it would never hold"
        in command("verdicts", P, "--accept", "--reason", "x", "--until", "2020-01-01").output
    )
    assert read_acknowledgements(home) == []


def test_one_that_cannot_be_read_is_named_and_nothing_passes_by_it(home: PipelineHome, command: Command) -> None:
    reconcile(home, verdicts(MIXED))
    command("verdicts", P, "--accept", "--reason", "upgrade")
    (one,) = json.loads(command("verdicts", P, "--accepted").stdout)
    open_store(home.place).put(f"acknowledgements/{one['id']}.json", b"")
    told = command("verdicts", P, "--accepted")
    assert told.exit_code == 1
    assert f"acknowledgements/{one['id']}.json of {P} cannot be read" in told.output
    assert "delete the file, and accept it again" in told.output


def test_a_reason_that_was_stored_in_older_words_still_counts(home: PipelineHome, command: Command) -> None:
    order = "records of the key {} are in the partitions 0, 1 of t, so their order {} how batches were cut"
    reconcile(home, verdicts(order.format("k", "hangs on")))
    assert command("verdicts", P, "--accept", "--reason", "known").exit_code == 0
    reasons = reasons_of([("stream", "NOT_COMPARABLE", "both", order.format("k", "depends on"))])
    assert select_acknowledged(read_acknowledgements(home), "t1", reasons, utc_now()).keys() == {"stream"}


STORED_BY_0_1 = {
    "passed": False,
    "alerts": [
        {
            "severity": "critical",
            "kind": "nothing_compared",
            "message": (
                "none of the 2 rows of the pair served could be compared, so this run shows nothing about them; see the "
                "reasons with `rivertwice verdicts`, --verdict NOT_COMPARABLE; if they are known, `rivertwice acknowledge` "
                "lets the gate pass"
            ),
        }
    ],
    "suites": [],
}


def test_the_pair_is_a_field_of_the_alert_and_not_read_in_its_text(home: PipelineHome, command: Command) -> None:
    found = [*verdicts(MIXED, pair="served"), *verdicts(GAP)]
    gate = judge(home, found).to_json()
    assert {alert["pair"] for alert in gate["alerts"]} == {"served", "stream"}
    store(home, found, gate | {"alerts": [alert | {"message": "other words"} for alert in gate["alerts"]]})
    made = command("verdicts", P, "--accept", "--reason", "known")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["reasons"] == {"served": [MIXED], "stream": [GAP]}


def test_an_alert_that_0_1_stored_without_its_pair_is_acknowledged(home: PipelineHome, command: Command) -> None:
    store(home, [*verdicts(MIXED, MIXED, pair="served"), *verdicts(GAP)], STORED_BY_0_1)
    made = command("verdicts", P, "--accept", "--reason", "known")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["reasons"] == {"served": [MIXED]}
