"""Every code block of the page on results, and the notebook, over a stream that really ran and was reconciled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from pyspark.sql import SparkSession

import rivertwice
from homes.project import REPOSITORY
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.read.project import Project
from rivertwice.reconcile.results import cause_rows, verdict_rows
from rivertwice.reconcile.run import reconcile
from rivertwice.timeline.served import export_sha256, read_served, rebuild_served
from streams.flights import PIPELINE, StreamedRun, copy_run

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
PAGE = (REPOSITORY / "docs" / "howto-results.md").read_text()
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
NOTEBOOK = REPOSITORY / "docs" / "results.ipynb"


@pytest.fixture(scope="module")
def settings(streamed_two_days: StreamedRun, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A copy of two streamed days, served and reconciled."""
    copy = copy_run(streamed_two_days, tmp_path_factory.mktemp("results"))
    rebuild_served(copy.home, load_definition(copy.settings.definition_folder(PIPELINE)))
    reconcile(spark, copy.settings, copy.pipeline, full=True, now=utc_now())
    return copy.settings


@pytest.fixture(scope="module")
def project(settings: Settings) -> Project:
    return rivertwice.open(settings.project, home=settings.home)


@pytest.fixture
def env(settings: Settings) -> dict[str, str]:
    """The environment of a shell in which `rivertwice` and `python` are those of this process."""
    paths = os.pathsep.join(str(REPOSITORY / name) for name in ("src", "tests"))
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, **settings.to_env(), "PYTHONPATH": paths, "PATH": tools}


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=lambda number: f"block-{number + 1}")
def test_every_block_of_the_page_runs_as_it_is_printed(env: dict[str, str], tmp_path: Path, number: int) -> None:
    language, text = BLOCKS[number]
    command = (
        ["bash", "-e", "-c", text] if language == "bash" else [sys.executable, "-W", "error::UserWarning", "-c", text]
    )
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip(), text


def test_the_notebook_runs_from_the_first_cell_to_the_last(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RIVERTWICE_PROJECT", "RIVERTWICE_HOME", "PYTHONPATH"):
        monkeypatch.setenv(name, env[name])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in cells)
    assert PIPELINE in str(cells[0].outputs)
    assert "as of batch" in str(cells[1].outputs)
    assert all("text/html" in output.data for output in cells[-1].outputs)


def test_the_notebook_ships_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)


def test_what_is_shown_is_what_is_stored(
    settings: Settings, project: Project, env: dict[str, str], tmp_path: Path
) -> None:
    home = settings.pipeline(PIPELINE)
    served = read_served(home)
    assert served is not None
    command = ["rivertwice", "--output", "json", "show", PIPELINE, "--limit", "10000"]
    shown = json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
    assert len(shown["rows"]) == shown["total"] == served.num_rows
    assert shown["status"]["is_current"]
    assert shown["status"]["batch"] == max(project.ledger(PIPELINE).to_pandas()["batch"])
    target = tmp_path / "rows.jsonl"
    subprocess.run(["rivertwice", "show", PIPELINE, "--write", str(target)], env=env, check=True, capture_output=True)
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    key = [(row["window_start"], row["origin"]) for row in lines]
    assert key == sorted(key)
    assert {json.dumps(row, sort_keys=True) for row in lines} == {
        json.dumps(row, sort_keys=True) for row in shown["rows"]
    }
    assert (
        export_sha256(home)
        in subprocess.run(["sha256sum", str(target)], capture_output=True, text=True, check=True).stdout
    )


def test_verdicts_and_causes_are_those_of_the_reconcile(settings: Settings, project: Project) -> None:
    home = settings.pipeline(PIPELINE)
    verdicts, causes = project.verdicts(PIPELINE), project.causes(PIPELINE)
    run = verdicts.status.run
    assert run is not None
    assert verdicts.to_arrow().num_rows == len(verdict_rows(home, run)) > 0
    assert causes.to_arrow().num_rows == len(cause_rows(home, run)) > 0


def test_spark_reads_the_same_rows(project: Project, spark: SparkSession) -> None:
    rows = project.served(PIPELINE, start="2013-06-30", end="2013-07-01", key={"origin": "JFK"})
    names = ["window_start", "flights", "delay_mean"]
    frame = rows.to_spark(spark)
    own = frame.select(*names).toArrow().sort_by("window_start")
    assert own.equals(rows.to_arrow().select(names).sort_by("window_start").cast(own.schema))
    assert own.num_rows > 5
