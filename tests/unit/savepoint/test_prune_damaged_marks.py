"""A mark of an interrupted deletion or take that cannot be read concerns its own savepoint only."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import timedelta

import pytest
from click.testing import CliRunner

from homes.savepoint import NOW, make_home
from rivertwice.cli.main import cli
from rivertwice.core.errors import SavepointError
from rivertwice.savepoint.catalogue import list_savepoints, load_savepoint, savepoint_store
from rivertwice.savepoint.prune import describe_damaged_mark
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.intent import write_intent

HALF, LATER = "sp-t1-1-00000000", "sp-t1-2-00000000"


@pytest.fixture
def world(tmp_path):
    """Two savepoints, and a decided deletion whose id sorts after the one with the damaged mark."""
    settings, home = make_home(tmp_path / "a folder")
    taken = [take_savepoint(settings, "p", now=NOW + timedelta(hours=hour)) for hour in range(2)]
    write_intent(home, "running", "test", NOW)
    store = savepoint_store(home)
    store.put(f"{LATER}/checkpoint/metadata", b"")
    store.put(f"{LATER}/deleting.json", encode_record({"at": "x", "decided": True}))
    return settings, home, taken


def prune(settings, output="json"):
    options = ["--project", str(settings.project), "--home", str(settings.home), "--output", output]
    return CliRunner().invoke(cli, [*options, "savepoint", "prune", "p", "--keep", "1", "--yes"])


def files_of(home, name):
    return {path: path.read_bytes() for path in (home.savepoints / name).rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("mark", "data", "why"),
    [
        ("deleting.json", b"", "is not a JSON object"),
        ("deleting.json", b"\0\0", "is not a JSON object"),
        ("deleting.json", b"[" * 100_000, "is not a JSON object"),
        ("deleting.json", b'{"format":2}', "has format 2, and this version reads 1"),
        ("taking.json", b"\xff\xfe", "is not a JSON object"),
        ("taking.json", b'{"format":1}', "has no instant started_at"),
        ("taking.json", b'{"format":1,"started_at":"x"}', "has no instant started_at"),
        ("taking.json", b'{"format":1,"started_at":7}', "has no instant started_at"),
    ],
)
def test_a_damaged_mark_is_named_and_the_others_are_pruned(world, mark, data, why):
    settings, home, (oldest, newest) = world
    store = savepoint_store(home)
    store.put(f"{HALF}/checkpoint/metadata", b"half")
    store.put(f"{HALF}/{mark}", data)
    before = files_of(home, HALF)
    done = prune(settings)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["deleted"] == [oldest.id, LATER]
    assert list(report["damaged"]) == [HALF]
    assert f"{HALF}/{mark} {why}" in report["damaged"][HALF]
    assert f"warning: {report['damaged'][HALF]}" in done.stderr
    assert files_of(home, HALF) == before
    assert [one.id for one in list_savepoints(home)] == [newest.id]


def test_the_remedy_for_a_damaged_mark_works_as_it_is_printed(world):
    settings, home, _ = world
    savepoint_store(home).put(f"{HALF}/deleting.json", b"\0")
    command = re.search(r"`(rm [^`]+)`", prune(settings, output="text").stderr)
    assert command is not None
    subprocess.run(["sh", "-c", command[1]], check=True)
    assert not (home.savepoints / HALF).exists()
    assert json.loads(prune(settings).stdout)["damaged"] == {}


def test_a_savepoint_that_may_be_half_deleted_is_not_trusted(world):
    settings, home, (oldest, newest) = world
    newest.store.put(f"{newest.id}/proof.json", encode_record({"proved": True}))
    newest.store.put(f"{newest.id}/deleting.json", b"\0")
    report = json.loads(prune(settings).stdout)
    assert (report["protected"], list(report["damaged"])) == ({oldest.id: "newest"}, [newest.id])
    assert [one.id for one in list_savepoints(home)] == [oldest.id]
    with pytest.raises(SavepointError, match="is being deleted"):
        load_savepoint(home, newest.id)


def test_the_remedy_on_s3_names_the_whole_savepoint():
    message = describe_damaged_mark("s3://bucket/savepoints/p", HALF, "deleting.json", "is not a JSON object")
    assert f"`aws s3 rm --recursive s3://bucket/savepoints/p/{HALF}/`" in message
