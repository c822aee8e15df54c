"""A fixed definition beside the running one: its past by batch, its present by stream, and every differing row with a cause."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from homes.project import TO_RUN, make_project, replace_text
from rivertwice.core.homes import Place
from rivertwice.core.instants import to_ms
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.storage.table import Table
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.served import export_sha256, rebuild_served
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm
from streams.amounts import MINUTE_MS, NAME, SQL, WINDOW_MS, YAML, Amount, amounts, send, totals

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
OLD, NEW = NAME, f"{NAME}@v2"
DECLARED = """\
reason: amounts that go out counted as negative
rows:
  - columns: [total]
    where: "new.total > old.total"
    reason: the sum is of absolute amounts
"""


def rebuild(settings: Settings, name: str) -> None:
    """Do what the agent does after a batch."""
    rebuild_served(settings.pipeline(name), load_definition(settings.definition_folder(name)))


def served(settings: Settings, name: str) -> dict[Any, tuple[int, int]]:
    rebuild(settings, name)
    return rows_at(settings.pipeline(name).tables.served)


def rows_at(place: Place, keys: Sequence[str] = ("k",)) -> dict[Any, tuple[int, int]]:
    """Return what a consumer reads."""
    table = Table(place).read()
    assert table is not None
    rows = table.to_pylist()
    return {(to_ms(row["window_start"]), *(row[key] for key in keys)): (row["records"], row["total"]) for row in rows}


def begin_version(settings: Settings, log: Path) -> dict[str, Any]:
    """Begin the version and compute its past; no agent runs, so its driver is run in between."""
    command = ("--output", "json", "upgrade", OLD, "--new-version", "--yes")
    first = invoke_warm(settings, *command)
    assert "no agent is running" in first.output, (first.output, first.exception)
    run_driver_warm(settings, NEW, log)
    done: dict[str, Any] = run_command_warm(settings, *command[2:])
    return done


def reconciled(settings: Settings, *names: str) -> None:
    for name in names:
        served(settings, name)
        assert run_command_warm(settings, "reconcile", name)["gate"]["passed"]


@pytest.mark.proves("cli.md#savepoints-and-versions", "howto-upgrade.md#what-can-change")
def test_a_fix_runs_beside_until_every_difference_has_a_cause(tmp_path: Path, broker: BrokerInfo) -> None:
    topic, log = f"t-{uuid.uuid4().hex[:12]}", tmp_path / "driver.log"
    files = {"pipeline.yaml": YAML.replace("TOPIC", topic), "transform.sql": SQL}
    settings = make_project(tmp_path, {OLD: files}, links=TO_RUN, bootstrap=broker.bootstrap)
    ensure_topic(settings, topic, 1)
    records = amounts()
    send(settings, topic, records[:500])
    run_driver_warm(settings, OLD, log)
    before = served(settings, OLD)

    replace_text(settings.definitions / OLD / "transform.sql", "sum(delta)", "sum(abs(delta))")
    refused = invoke_warm(settings, "upgrade", OLD)
    assert refused.exit_code == 1
    assert "--new-version" in refused.output
    shown = invoke_warm(settings, "upgrade", OLD, "--new-version").output
    assert "amounts@v2 would run beside amounts: nothing was changed" in shown
    assert "+SELECT window.start AS window_start" in shown
    assert "rivertwice upgrade amounts --new-version --yes" in shown
    assert not settings.pipeline(NEW).root.exists()

    report = begin_version(settings, log)
    assert report["version"] == NEW
    assert [piece["windows"] > 10 for piece in report["load"]["published"]] == [True]
    send(settings, topic, records[500:])
    for name in (OLD, NEW):  # the old one starts again, whatever the project says
        run_driver_warm(settings, name, log)
    read = {name: sum(row.read for row in path_ledger(settings.pipeline(name))) for name in (OLD, NEW)}
    assert read[OLD] == len(records)
    assert read[NEW] < 0.4 * len(records)

    unproved = run_command_warm(settings, "version", "compare", NEW, code=3)
    assert unproved["reasons"] == [
        f"no reconcile has proved what {name} serves; run `rivertwice reconcile {name}`" for name in (OLD, NEW)
    ]
    reconciled(settings, OLD, NEW)
    truth, ours, theirs = totals(records), served(settings, NEW), served(settings, OLD)
    assert {row: theirs[row] for row in before} == before
    closed = {row for row in ours if row in theirs}
    apart = {row for row in closed if theirs[row] != ours[row]}  # what both streams dropped is the same in both
    meant = {row for row in closed if truth[row][1] != truth[row][2]}
    assert meant < apart
    assert any(theirs[row][0] != truth[row][0] for row in closed - apart)

    refused_rows = run_command_warm(settings, "version", "compare", NEW, "--limit", "1000", code=3)
    assert refused_rows["reasons"] == [f"{len(meant)} rows differ without a cause"]
    named = {(to_ms_of(each["window_start"]), each["key"]["k"]) for each in refused_rows["rows"]["examples"]}
    assert named == meant
    assert refused_rows["late"] == len(apart - meant)

    change_file = settings.definitions / OLD / "changes" / "v2.yaml"
    change_file.parent.mkdir()
    change_file.write_text(DECLARED)
    passed = run_command_warm(settings, "version", "compare", NEW)
    assert passed["passed"]
    rows = passed["rows"]
    assert (rows["equal"] + sum(rows["declared"]) + passed["late"], rows["old_rows"]) == (len(closed), len(closed))
    assert passed["late"] == len({row for row in apart if theirs[row][0] != ours[row][0]})
    text = invoke_warm(settings, "version", "compare", NEW).output
    assert "every difference between amounts@v2 and amounts has a cause" in text

    change_file.write_text(DECLARED.replace("new.total > old.total", "new.total > old.total AND k = 'out'"))
    narrow = run_command_warm(settings, "version", "compare", NEW, code=3)
    both = len({row for row in meant if row[1] == "both"})
    assert narrow["reasons"] == [f"{both} rows differ without a cause"]

    refused_switch = run_command_warm(settings, "version", "serve", NEW, "--yes", code=3)
    assert refused_switch["reasons"] == narrow["reasons"]
    change_file.write_text(DECLARED)
    sha256 = {name: export_sha256(settings.pipeline(name)) for name in (OLD, NEW)}
    public = settings.pipeline(OLD).public_served
    run_command_warm(settings, "version", "serve", NEW, "--yes")
    assert rows_at(public) == ours
    send(settings, topic, [Amount("in", records[-1].at_ms + 40 * MINUTE_MS, 5)])
    for name in (OLD, NEW):
        run_driver_warm(settings, name, log)
        served(settings, name)
    assert rows_at(public) == served(settings, NEW)
    assert len(rows_at(public)) > len(ours)
    reconciled(settings, OLD, NEW)
    later = export_sha256(settings.pipeline(OLD))
    assert later != sha256[OLD]
    assert "serves: amounts@v2" in invoke_warm(settings, "version", "list", OLD).output
    assert invoke_warm(settings, "version", "drop", NEW, "--yes").exit_code == 1

    back = run_command_warm(settings, "version", "serve", OLD, "--yes")
    assert (back["before"], back["changed"]) == (NEW, True)
    assert rows_at(public) == served(settings, OLD)
    assert export_sha256(settings.pipeline(OLD)) == later
    reconciled(settings, OLD)
    run_command_warm(settings, "version", "drop", NEW, "--yes")
    assert not settings.pipeline(NEW).root.exists()
    assert export_sha256(settings.pipeline(OLD)) == later


OTHERS = {
    "window": (
        ("pipeline.yaml", "size: 10 minutes", "size: 20 minutes"),
        ("transform.sql", "'10 minutes'", "'20 minutes'"),
    ),
    "key": (
        ("pipeline.yaml", "keys: [k]", "keys: [k, delta]"),
        ("transform.sql", "window_end, k,", "window_end, k, delta,"),
        ("transform.sql", "minutes'), k", "minutes'), k, delta"),
    ),
}
REASON = "as planned with the readers"


def printed(text: str, beginning: str) -> list[str]:
    """Return the words of the first command in backquotes that begins so, with a reason of a person."""
    command = next(part for part in " ".join(text.split()).split("`")[1::2] if part.startswith(beginning))
    return shlex.split(command.replace("TEXT", shlex.quote(REASON)))[1:]


@pytest.mark.proves("howto-upgrade.md#other-windows-or-keys")
@pytest.mark.parametrize("change", OTHERS)
def test_other_windows_or_keys_go_the_whole_way_by_the_commands_that_are_printed(
    tmp_path: Path, broker: BrokerInfo, change: str
) -> None:
    topic, log = f"t-{uuid.uuid4().hex[:12]}", tmp_path / "driver.log"
    files = {"pipeline.yaml": YAML.replace("TOPIC", topic), "transform.sql": SQL}
    settings = make_project(tmp_path, {OLD: files}, links=TO_RUN, bootstrap=broker.bootstrap)
    ensure_topic(settings, topic, 1)
    records = amounts()
    send(settings, topic, records[:500])
    run_driver_warm(settings, OLD, log)
    for file, before, after in OTHERS[change]:
        replace_text(settings.definitions / OLD / file, before, after)
    size_ms, keys = (2 * WINDOW_MS, ("k",)) if change == "window" else (WINDOW_MS, ("k", "delta"))

    refused = invoke_warm(settings, "upgrade", OLD)
    assert refused.exit_code == 1
    begin, accept = (printed(refused.output, f"rivertwice {verb}") for verb in ("upgrade", "version serve"))
    assert begin == ["upgrade", OLD, "--new-version"]
    begun = invoke_warm(settings, *begin, "--yes")  # no agent runs, so its driver is run here
    assert "no agent is running" in begun.output, (begun.output, begun.exception)
    run_driver_warm(settings, NEW, log)
    done = invoke_warm(settings, *begin, "--yes")
    assert done.exit_code == 0, (done.output, done.exception)
    assert printed(done.output, "rivertwice version serve") == accept

    compared = invoke_warm(settings, "version", "compare", NEW)
    assert compared.exit_code == 3
    assert printed(compared.output, "rivertwice version serve") == accept
    for name in (OLD, NEW):
        rebuild(settings, name)
    lacking = invoke_warm(settings, *accept, "--dry-run")
    assert lacking.exit_code == 1
    for name in (NEW, OLD):
        run_command_warm(settings, *printed(lacking.output, f"rivertwice reconcile {name}"))
    send(settings, topic, records[500:])
    run_driver_warm(settings, OLD, log)
    run_command_warm(settings, "reconcile", OLD)
    behind = invoke_warm(settings, *accept, "--yes")
    assert behind.exit_code == 1
    assert f"{NEW} has not read 100 records" in behind.output
    assert invoke_warm(settings, *printed(behind.output, "rivertwice start")).exit_code == 0
    run_driver_warm(settings, NEW, log)
    for name in (OLD, NEW):
        rebuild(settings, name)

    public = settings.pipeline(OLD).public_served
    old_rows, new_rows = rows_at(public), rows_at(settings.pipeline(NEW).tables.served, keys)
    shown = run_command_warm(settings, "version", "serve", NEW, code=3)
    assert (shown["before"]["rows"], shown["after"]["rows"]) == (len(old_rows), len(new_rows))
    assert shown["unready"] == []
    assert rows_at(public) == old_rows
    switched = run_command_warm(settings, *accept, "--yes")
    assert (switched["version"], switched["before"], switched["rows"]) == (NEW, OLD, len(new_rows))
    assert rows_at(public, keys) == new_rows
    truth: dict[Any, list[int]] = {}
    for record in records:
        row = (record.at_ms // size_ms * size_ms, *(getattr(record, key) for key in keys))
        truth.setdefault(row, []).append(record.delta)
    late = {record.at_ms // size_ms for number, record in enumerate(records) if number % 41 == 40 and number > 180}
    whole = {row: found for row, found in new_rows.items() if row[0] // size_ms not in late}
    assert len(whole) > 10
    assert whole == {row: (len(truth[row]), sum(truth[row])) for row in whole}
    rebuild(settings, NEW)
    assert run_command_warm(settings, "reconcile", NEW)["gate"]["passed"]  # it is judged by its own truth, as before
    (listed,) = run_command_warm(settings, "version", "list", OLD)
    assert (listed["serves"], listed["accepted"]["reason"]) == (True, REASON)
    assert listed["accepted"]["after"]["rows"] == len(new_rows)

    run_command_warm(settings, "version", "serve", OLD, "--yes")
    assert rows_at(public) == old_rows
    run_command_warm(settings, "version", "serve", NEW, "--yes")  # accepted once
    assert rows_at(public, keys) == new_rows


def to_ms_of(text: str) -> int:
    from rivertwice.core.instants import parse_iso

    return to_ms(parse_iso(text))
