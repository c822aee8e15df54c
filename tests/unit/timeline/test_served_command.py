"""`rivertwice admin rebuild` builds the table from all rows, and says whether it was right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from homes.backfill import make_home
from rivertwice.cli.main import cli
from rivertwice.core.settings import Settings
from rivertwice.storage.table import Table
from rivertwice.timeline.served import export_sha256, rebuild_served
from rivertwice.timeline.served_stamp import provisional_stamp, read_served_stamp


def rebuild(settings: Settings, *options: str) -> tuple[int, dict[str, Any]]:
    where = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]
    answer = CliRunner().invoke(cli, [*where, "admin", "rebuild", "p", *options])
    return answer.exit_code, json.loads(answer.stdout or answer.stderr.strip().splitlines()[-1])


@pytest.mark.parametrize("emit", ["final", "updates"])
def test_a_rebuild_of_a_right_table_has_the_same_rows(tmp_path: Path, emit: str) -> None:
    settings, home, bundle = make_home(tmp_path, emit=emit)
    rebuild_served(home, bundle.definition)
    sha256, version = export_sha256(home), Table(home.tables.served).open()
    code, report = rebuild(settings, "--compare")
    assert (code, report["way"], report["rows"], report["is_same"]) == (0, "whole", 8, True)
    assert report["sha256"] == sha256 == export_sha256(home)
    assert version is not None
    assert Table(home.tables.served).open().version == version.version + 1  # type: ignore[union-attr]
    if emit == "updates":
        assert provisional_stamp(home) == read_served_stamp(home)


def test_a_rebuild_of_a_wrong_table_says_so_and_makes_it_right(tmp_path: Path) -> None:
    settings, home, bundle = make_home(tmp_path)
    rebuild_served(home, bundle.definition)
    right = export_sha256(home)
    rows = Table(home.tables.served).read()
    assert rows is not None
    Table(home.tables.served).replace_rows(rows.slice(1))
    assert rebuild(settings)[1]["is_same"] is None
    assert export_sha256(home) == right
    Table(home.tables.served).replace_rows(rows.slice(1))
    code, report = rebuild(settings, "--compare")
    assert (code, report["is_same"]) == (3, False)
    assert export_sha256(home) == right


def test_before_the_first_batch_there_is_nothing_to_rebuild(tmp_path: Path) -> None:
    settings, _, _ = make_home(tmp_path, batches=0)
    code, report = rebuild(settings)
    assert code == 1
    assert "no committed batch" in report["error"]["message"]
