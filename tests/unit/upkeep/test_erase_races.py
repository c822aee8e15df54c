"""While a value is erased others append, update and start: nothing of theirs is lost, and nothing of the value comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from homes.delivery import TakingSink, publish_rows
from homes.erasure import BATCHES, SECRET, TOPIC, ErasureWorld
from homes.ledger import NOW
from rivertwice.core.errors import LeaseLostError, LostRaceError, RequestError
from rivertwice.definition.bundle import build_bundle
from rivertwice.deliver.aside import ask
from rivertwice.log import archive, kafka
from rivertwice.log.archive import extend_archive
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import TableCare
from rivertwice.stream.lease import acquire_lease, lease_owner
from rivertwice.timeline.requests import StoredRequest

pytestmark = pytest.mark.long


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ErasureWorld:
    return ErasureWorld(tmp_path, monkeypatch)


def before_replacing(patch: pytest.MonkeyPatch, table: str, act: Callable[[], object]) -> None:
    """Do something once, when rows of a table were read and rewritten, and are not replaced yet."""
    real, done = Table.replace_rows, []

    def replace(replaced: Table, rows: pa.Table, **rest: Any) -> int:
        if str(replaced.place).endswith(table) and not done:
            done.append(act())
        return real(replaced, rows, **rest)

    patch.setattr(Table, "replace_rows", replace)


@pytest.mark.proves("guarantees.md#erasure")
def test_a_record_that_another_host_archives_meanwhile_is_not_lost(
    world: ErasureWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def archive_on_two() -> None:
        world.log += ["late 1", "late 2"]
        try:
            extend_archive(None, world.hosts[1], TOPIC)
        except LostRaceError:
            return  # it was kept away, and comes again

    before_replacing(monkeypatch, TOPIC, archive_on_two)
    world.erase()
    extend_archive(None, world.hosts[1], TOPIC)
    found = world.archived()
    assert [offset for offset, _ in found] == list(range(len(world.log))), "records are gone for good"
    assert SECRET not in {key for _, key in found}
    assert {"late 1", "late 2"} <= {key for _, key in found}


def test_the_archive_job_of_another_host_is_kept_away_and_says_by_what(
    world: ErasureWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []

    def archive_on_two() -> None:
        world.log.append("late")
        with pytest.raises(LostRaceError, match="another host works on the archive of flights") as error:
            extend_archive(None, world.hosts[1], TOPIC)
        refused.append(str(error.value))

    before_replacing(monkeypatch, TOPIC, archive_on_two)
    world.erase()
    assert "try again when it is done" in refused[0]


@pytest.mark.proves("failure-modes.md#an-erasure")
def test_an_append_that_no_lock_keeps_away_makes_the_rewrite_begin_again(
    world: ErasureWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version of the platform that knows no lock in the shared place: the table's version alone decides."""
    path = world.hosts[0].archive(TOPIC)

    def append() -> None:
        world.log += [SECRET, "late"]
        rows = world._records(len(world.log) - 2, len(world.log))
        Table(path).append(rows, transactions={"archive/id": 99, "archive/id/0": len(world.log)})

    before_replacing(monkeypatch, TOPIC, append)
    world.erase()
    found = world.archived()
    assert [offset for offset, _ in found] == list(range(len(world.log)))
    assert SECRET not in {key for _, key in found}
    assert Table(path).applied_version("archive/id/0") == len(world.log)


@pytest.mark.proves("guarantees.md#erasure", "howto-privacy.md#what-it-cannot-do")
@pytest.mark.parametrize(
    ("config", "until", "said"),
    [
        ({"retention.ms": "3600000"}, "1970-01-01T01:00:36Z", "flights until 1970-01-01T01:00:36Z"),
        ({"retention.ms": "-1"}, None, "flights for ever"),
        ({"retention.ms": "3600000", "cleanup.policy": "compact"}, None, "flights for ever"),
    ],
    ids=["deleted", "kept", "compacted"],
)
def test_the_outcome_says_until_when_kafka_keeps_the_newest_record(
    world: ErasureWorld, monkeypatch: pytest.MonkeyPatch, config: dict[str, str], until: str | None, said: str
) -> None:
    monkeypatch.setattr(kafka, "topic_config", lambda *_: config)
    assert world.erase()["kafka"] == {TOPIC: until}
    (listed,) = json.loads(world.rivertwice("admin", "privacy", "list").stdout)
    done = world.rivertwice("admin", "privacy", "resume", listed["id"], output="text")
    assert done.exit_code == 0, (done.output, done.exception)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Kafka keeps them")]
    assert said in line


@pytest.mark.proves("guarantees.md#erasure")
@pytest.mark.parametrize("table", ["served", "amendments"])
def test_a_concurrent_update_of_a_table_is_seen_and_purged_too(
    world: ErasureWorld, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    path = world.home.tables.amendments if table == "amendments" else world.home.tables.served
    Table(path).append(pa.table({"k": [SECRET, "x"]}))
    before_replacing(monkeypatch, path.name, lambda: Table(path).append(pa.table({"k": [SECRET, "decided meanwhile"]})))
    world.erase()
    rows = Table(path).read()
    assert rows is not None
    assert rows.num_rows == 4
    assert {"x", "decided meanwhile"} < set(rows["k"].to_pylist())
    assert SECRET not in rows["k"].to_pylist()


@pytest.mark.proves("guarantees.md#erasure")
def test_no_driver_of_another_host_starts_while_tables_are_rewritten(
    world: ErasureWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []

    def start_on_two() -> None:
        for host in world.hosts:
            with pytest.raises(LeaseLostError) as error:
                acquire_lease(host.pipeline("p"), "t1", NOW).release()
            said.append(str(error.value))

    before_replacing(monkeypatch, "changelog", start_on_two)
    world.erase()
    assert "owns the stream of p" in said[0]
    assert "holds the lease" in said[1]
    assert lease_owner(world.home) is None, "an erasure is no driver"
    acquire_lease(world.hosts[1].pipeline("p"), "t1", NOW).release()


def test_what_killed_appends_logs_and_alerts_hold_goes_too(world: ErasureWorld) -> None:
    archive_path = Path(str(world.hosts[0].archive(TOPIC)))
    changelog = Path(str(world.home.tables.changelog))
    orphans = [
        archive_path / "day=1970-01-01" / "part-00000-killed.parquet",
        archive_path / "part-00000-killed.parquet#1",
        changelog / "_delta_log" / "_commit_8d1f.json.tmp",
    ]
    for path in orphans:
        path.write_text(f"half of {SECRET}")
    home = world.hosts[0].home
    texts = [
        home / "alerts.jsonl",
        home / "agent" / "events.jsonl",
        home / "agent" / "log.1",
        world.home.logs / "driver.log",
        world.home.logs / "driver.log.2",
    ]
    for path in texts:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"message": "{SECRET} came late, {SECRET}0 did not"}}\n')
    size = [path.stat().st_size for path in texts]

    outcome = world.erase()

    assert [path for path in orphans if path.exists()] == []
    for path in texts:
        assert path.read_text() == f'{{"message": "erased- came late, {SECRET}0 did not"}}\n'
    assert [path.stat().st_size for path in texts] == size, "whoever has it open writes on at its end"
    assert outcome["masked"] == {str(path.relative_to(home)): 1 for path in sorted(texts)}
    rows = Table(changelog).read()
    assert rows is not None
    assert rows.num_rows == 2 * BATCHES


def test_refused_deliveries_are_purged_and_say_what_the_destination_has(
    world: ErasureWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A destination took every row, then refused the corrections of two of them; somebody asked for one of these again."""
    sink = TakingSink()
    monkeypatch.setattr("rivertwice.deliver.deliver.make_sink", lambda *_: sink)
    folder = world.hosts[0].definitions / "p"
    with (folder / "pipeline.yaml").open("a") as file:
        file.write("\ndeliver: {out: {to: kafka, topic: out, guarantee: exactly_once}}\n")

    def deliver() -> None:
        assert world.rivertwice("deliver", "run", "p", "--until-end").exit_code == 0

    def refused() -> list[dict[str, Any]]:
        return list(json.loads(world.rivertwice("deliver", "refused", "p").stdout))

    deliver()
    bundle = build_bundle(folder)
    sink.refuse = lambda _: True
    publish_rows(world.home, bundle, 0, 2, [(0, SECRET, 4), (0, "other", 8), (1, SECRET, 3), (1, "other", 7)])
    deliver()
    key = next(one["key"] for one in refused() if SECRET in one["key"])
    ask(world.home, "out", "retry", [key], why="by hand", by="ops", now=NOW)
    place = world.home.place
    assert SECRET in (Path(str(place)) / "delivery" / "out.refused.json").read_text()
    assert len(refused()) == 2

    outcome = world.erase()

    assert outcome["masked"]["p/delivery/out"] == 2
    left = [
        path
        for path in [*Path(str(place)).rglob("*.json"), *world.home.root.rglob("*.json")]
        if "_delta_log" not in path.parts
    ]
    assert [path for path in left if SECRET in path.read_text()] == []
    mine = next(one for one in refused() if json.loads(one["key"])["keys"]["k"] != "other")
    pseudonym = json.loads(mine["key"])["keys"]["k"]
    assert pseudonym.startswith("erased-")
    assert pseudonym in mine["held"]["values"]
    sink.refuse = lambda _: False
    deliver()
    told = [one for one in sink.taken if one["keys"]["k"] == pseudonym]
    assert [(one["op"], one["replaces"]["values"], one["values"]) for one in told] == [("correct", {"n": 3}, {"n": 4})]


def test_values_that_wait_to_amend_dead_letters_go(world: ErasureWorld) -> None:
    value = json.dumps({"k": SECRET})
    values = {"place": "t/0@5", "value": value, "reason": "a wrong field"}
    StoredRequest("dead.amend", values, "ada", NOW).save(world.home, "rq-1")
    outcome = world.erase()
    assert outcome["masked"]["p/operations/amend"] == 1
    assert [*world.home.operations.glob("request-*")] == []
    with pytest.raises(RequestError, match="ask for it again"):
        StoredRequest.load(world.home, "rq-1")


def test_the_locks_are_given_back(world: ErasureWorld) -> None:
    world.erase()
    world.log.append("after")
    assert extend_archive(None, world.hosts[1], TOPIC).records == 1
    with archive.archive_lock(world.hosts[0], TOPIC) as check:
        check()


@pytest.mark.proves("failure-modes.md#an-erasure")
def test_a_writer_from_before_a_purge_cannot_commit_a_deleted_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "table"
    Table(path).append(pa.table({"k": ["a"]}))
    suspended = Table(path).open()
    TableCare(path).purge()
    with pytest.raises(DeltaError, match=r"Metadata changed|Invalid table version"):
        write_deltalake(suspended.handle, pa.table({"k": ["b"]}), mode="append")
    Table(path).append(pa.table({"k": ["c"]}))
    rows = Table(path).read()
    assert rows is not None
    assert sorted(rows["k"].to_pylist()) == ["a", "c"]
