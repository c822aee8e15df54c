"""Small files of a home: durable, and named with a remedy when they cannot be decoded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from homes.backfill import make_home
from rivertwice.cli.main import cli
from rivertwice.core.errors import ConfigError, DamagedFileError
from rivertwice.storage import local
from rivertwice.storage.local import LocalStore, put_json_if_absent, read_json, replace_json


@pytest.fixture
def synced(monkeypatch):
    """Note, in order, what is brought onto the disk (by inode) and what is renamed."""
    monkeypatch.setenv(local.VARIABLE, "on")
    done: list[str] = []
    fsync, replace, link = os.fsync, os.replace, os.link

    def noted(handle: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(f"rename {b}"), replace(a, b))[1])
    monkeypatch.setattr(os, "link", lambda a, b: (done.append(f"link {b}"), link(a, b))[1])
    return done


def shape(done: list[str], root: Path) -> list[str]:
    return [one.replace(str(root), "").replace("rename /", "rename ").partition(".tmp")[0] for one in done]


@pytest.mark.proves("failure-modes.md#a-power-loss")
def test_a_file_is_on_disk_before_its_name_and_both_before_the_return(tmp_path, synced):
    replace_json(tmp_path / "new" / "a.json", {"x": 1})
    told = shape(synced, tmp_path)
    assert told[0] == ""  # the new folder's name, in its parent
    assert told[1].startswith("/new/.a.json.")
    assert told[2:] == ["rename new/a.json", "/new"]
    synced.clear()
    assert put_json_if_absent(tmp_path / "new" / "b.json", {}) is True
    assert [one for one in shape(synced, tmp_path) if one in ("/new",)] == ["/new"]
    synced.clear()
    LocalStore(tmp_path / "store").put_file("k/f", tmp_path / "new" / "a.json")
    assert shape(synced, tmp_path)[-1] == "/store/k"


def test_a_setting_leaves_it_to_the_system(tmp_path, synced, monkeypatch):
    monkeypatch.setenv(local.VARIABLE, "off")
    replace_json(tmp_path / "a.json", {"x": 1})
    assert shape(synced, tmp_path) == ["rename a.json"]
    monkeypatch.setenv(local.VARIABLE, "perhaps")
    with pytest.raises(ConfigError, match="only on and off are known"):
        replace_json(tmp_path / "a.json", {"x": 2})
    assert read_json(tmp_path / "a.json") == {"x": 1}


@pytest.mark.parametrize("data", [b"", b"\0" * 40, b'{"format": 1, "pi', b"\xff\xfe{}"])
def test_a_file_that_cannot_be_decoded_is_named(tmp_path, data):
    path = tmp_path / "timeline.json"
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"timeline\.json \(the record of a timeline") as found:
        read_json(path)
    assert str(path) in str(found.value)
    assert isinstance(found.value, ValueError)


@pytest.mark.parametrize(
    ("name", "command", "remedy"),
    [
        ("timelines/t1/timeline.json", ["show", "p", "--late"], "put the file back from a backup"),
        ("intent.json", ["status"], "remove it (`rm "),
        ("exit.json", ["status"], "remove it (`rm "),
        ("heartbeat.json", ["status"], "remove it (`rm "),
    ],
)
def test_every_command_names_the_record_it_cannot_read_and_what_to_do(tmp_path, name, command, remedy):
    settings, home, _ = make_home(tmp_path)
    (home.root / name).write_bytes(b"")
    options = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]
    answer = CliRunner().invoke(cli, [*options, *command])
    assert answer.exit_code == 1, answer.output
    told = json.loads(answer.stderr.strip().splitlines()[-1])["error"]
    assert told["reason"] == "damaged_file"
    assert str(home.root / name) in told["message"]
    assert remedy in told["message"]
