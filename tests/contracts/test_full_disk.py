"""F23 without Spark: a full disk leaves no half commit, no half object and no half savepoint; freed, all goes on."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import pytest

from homes.project import make_project
from homes.savepoint import NOW, make_home
from lab.faults.cases import LabError
from lab.faults.cases_store import fill, small_disk
from rivertwice.core.instants import utc_now
from rivertwice.core.waits import Deadline
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.local import LocalStore, read_json
from rivertwice.storage.table import Table
from rivertwice.stream.failures import classify_failure
from rivertwice.timeline.intent import write_intent

ROWS = pa.table({"n": pa.array(range(5_000), pa.int64())})


@pytest.fixture
def disk(tmp_path):
    """A small file system of its own."""
    try:
        with small_disk(tmp_path / "disk", megabytes=16) as folder:
            yield folder
    except LabError as error:
        pytest.skip(str(error))


@contextmanager
def largest_file(size: int):
    """Let this process write no file beyond `size` bytes, as a quota would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.proves("guarantees.md#what-everything-needs")
@pytest.mark.parametrize("left", [0, 4_096, 12_288])
def test_a_table_on_a_full_disk_keeps_its_commits_and_takes_the_next(disk, left):
    table = disk / "changelog"
    Table(table).append(ROWS, transactions={"p#t1": 0}, metadata={"ledger": {"batch": 0}})
    filler = fill(disk, left)
    with pytest.raises(Exception, match="No space left") as found:
        Table(table).append(ROWS, transactions={"p#t1": 1}, metadata={"ledger": {"batch": 1}})
    assert classify_failure(found.value) == "disk"
    filler.unlink()
    assert Table(table).applied_version("p#t1") == 0
    assert Table(table).read().num_rows == 5_000
    Table(table).append(ROWS, transactions={"p#t1": 1}, metadata={"ledger": {"batch": 1}})
    assert Table(table).read().num_rows == 10_000
    assert [value["batch"] for _, value in Table(table).commits("ledger")] == [0, 1]


def test_an_object_that_did_not_fit_is_not_there_and_the_old_one_is_whole(disk, tmp_path):
    store = LocalStore(disk / "store")
    store.put("a", b"old")
    filler = fill(disk, 0)
    (tmp_path / "big").write_bytes(b"x" * 100_000)
    for act in (
        lambda: store.put("a", b"n" * 100_000),
        lambda: store.put_if_absent("b", b"n" * 100_000),
        lambda: store.put_file("c", tmp_path / "big"),
    ):
        with pytest.raises(OSError, match="No space left") as found:
            act()
        assert classify_failure(found.value) == "disk"
    filler.unlink()
    assert (store.list(), store.get("a")) == (["a"], b"old")


def test_a_savepoint_on_a_full_disk_is_not_there_and_the_next_one_is_whole(disk):
    settings, _ = make_home(disk)
    home = settings.pipeline("p")
    first = take_savepoint(settings, "p", now=NOW)
    filler = fill(disk, 8_192)
    with pytest.raises(OSError, match="No space left"):
        take_savepoint(settings, "p", now=NOW)
    assert [savepoint.id for savepoint in list_savepoints(home)] == [first.id]
    filler.unlink()
    second = take_savepoint(settings, "p", now=NOW)
    assert {savepoint.id for savepoint in list_savepoints(home)} == {first.id, second.id}
    for savepoint in (first, second):
        savepoint.verify_files()


def test_a_quota_on_files_is_of_the_same_class_and_leaves_nothing_half(tmp_path):
    store = LocalStore(tmp_path / "store")
    store.put("a", b"old")
    with largest_file(65_536), pytest.raises(OSError, match="File too large") as found:
        store.put("a", b"n" * 1_000_000)
    assert found.value.errno == errno.EFBIG
    assert classify_failure(found.value) == "disk"
    assert (store.list(), store.get("a")) == (["a"], b"old")


def test_an_agent_lives_through_a_full_disk_says_so_and_goes_on(disk):
    """A process of its own, as `rivertwice agent run` starts it; its whole home is full, then freed."""
    settings = make_project(disk, {"p": {"pipeline.yaml": "name: p\n"}})
    write_intent(settings.pipeline("p"), "stopped", "test", utc_now())
    folder = settings.home / "agent"
    command = [sys.executable, "-m", "rivertwice.cli.main", "agent", "run"]
    env = {**os.environ, **settings.to_env()}
    with (disk / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=env, stdout=log, stderr=log, cwd=settings.project, start_new_session=True
        )
    try:
        beat = partial(read_json, folder / "heartbeat.json")
        assert Deadline.after(60).wait_until(lambda: (beat() or {}).get("pid") == process.pid)
        filler = fill(disk, 0)
        alerts = settings.home / "alerts.jsonl"
        assert Deadline.after(60).wait_until(lambda: alerts.exists() and alerts.read_bytes().endswith(b"\n"))
        fill(disk, 0).rename(disk / "rest")
        still = beat()
        assert Deadline.after(60).wait_until(lambda: not (folder / "reserve").exists())
        assert process.poll() is None
        told = [json.loads(line) for line in alerts.read_text().splitlines()]
        assert [(one["kind"], one["severity"]) for one in told] == [("disk_full", "critical")]
        assert "is full since" in told[0]["message"]
        assert "the largest on it: outside of the home " in told[0]["message"]
        filler.unlink(missing_ok=True)
        (disk / "rest").unlink()
        assert Deadline.after(60).wait_until(lambda: beat()["at"] > still["at"] and (folder / "reserve").exists())
        events = [json.loads(line)["kind"] for line in (folder / "events.jsonl").read_text().splitlines()]
        assert "disk_full_over" in events
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(60) == 0
