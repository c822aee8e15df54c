"""What a verb does not import: each costs a tenth of a CPU-second to several. No time is measured here (lab/docs/bench.md has times)."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from homes.cockpit import Past, make_past
from homes.quality import between, write_suite
from rivertwice.definition.definition import load_definition
from rivertwice.quality.model import WINDOWS
from rivertwice.quality.suites import suite_mistakes

ENGINES = frozenset({"pyspark", "py4j", "great_expectations", "airflow", "scipy", "sqlalchemy", "numba"})
CLIENTS = frozenset({"confluent_kafka", "httpx", "boto3", "prometheus_client", "asyncio"})
FORMATS = frozenset({"avro", "google.protobuf", "jsonschema"})
ROWS = frozenset({"pandas", "duckdb", "polars"})
TABLES = frozenset({"pyarrow", "numpy", "deltalake"})
ROOMS = frozenset({
    "rivertwice.versions.view", "rivertwice.reconcile.seals.look", "rivertwice.timeline.served", "rivertwice.backfill.plan",
    "rivertwice.backfill.model",
})  # fmt: skip
"""Rooms about what most pipelines do not have: a second version, a first load; and plans of backfills."""
NOTHING = ENGINES | CLIENTS | FORMATS | ROWS
FORBIDDEN: dict[str, frozenset[str]] = {
    "--help": NOTHING | TABLES | {"pydantic", "yaml", "psutil"},
    "status": NOTHING | ROOMS,
    "pipelines": NOTHING | TABLES,
    "lint --without-spark": NOTHING | {"pyarrow", "deltalake"},
    "show p --limit 3": NOTHING,
    "backfill list p": NOTHING,
    "verdicts p": NOTHING,
    "quality p": NOTHING,
    "savepoint list p": NOTHING | TABLES,
    "version list p": NOTHING,
    "dead list p": NOTHING - {"confluent_kafka", "asyncio"},
    "alerts": (NOTHING | TABLES) - {"httpx"},
    "agent metrics p": NOTHING - {"prometheus_client", "confluent_kafka", "asyncio"},
    "status p --why": NOTHING - {"prometheus_client", "confluent_kafka", "asyncio"},
    "query 'select 1'": NOTHING - {"duckdb"},
    "show p --write out.csv": NOTHING,
    "show p --late": NOTHING,
    "agent status": NOTHING | TABLES,
    "admin schema": NOTHING | TABLES,
    "doctor": NOTHING | TABLES,
}
"""Verb to the modules that it must not import, over a home that has batches, reconciles, a backfill and no broker."""
DOOR = """
import atexit, json, sys
atexit.register(lambda: print("\\nMODULES", json.dumps(sorted(sys.modules)), file=sys.stderr))
from rivertwice.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light")
    settings = make_past(folder, Past(days=6, keys=3))
    write_suite(settings, WINDOWS, between(min_value=0))
    assert suite_mistakes(settings, load_definition(settings.definition_folder("p"))) == []
    return folder


def run(past: Path, verb: str, code: str = DOOR) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("RIVERTWICE_")}
    places = {"RIVERTWICE_PROJECT": str(past / "project"), "RIVERTWICE_HOME": str(past / "home")}
    return subprocess.run(
        [sys.executable, "-c", code, *shlex.split(verb)], env=known | places, cwd=past, capture_output=True, text=True
    )


@pytest.mark.parametrize("verb", FORBIDDEN)
def test_a_verb_imports_only_what_it_uses(past: Path, verb: str) -> None:
    done = run(past, verb)

    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    assert "unexpected" not in done.stderr, done.stderr[-2000:]
    assert done.returncode != 2, f"the verb is not what the table says: {done.stderr}"
    imported = set(json.loads(done.stderr.rsplit("MODULES ", 1)[1]))
    assert "rivertwice.cli.main" in imported, "the command line did not run"
    assert sorted(FORBIDDEN[verb] & imported) == []


def test_the_table_would_name_a_module_that_is_imported(past: Path) -> None:
    done = run(past, "status", "import pandas\n" + DOOR)

    assert {"pandas", "pyarrow"} <= set(json.loads(done.stderr.rsplit("MODULES ", 1)[1]))


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
def test_a_verb_starts_no_threads_for_matrices_and_searches_for_no_garbage_at_its_end(
    past: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], threads: str
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    at_end = "print('THREADS', os.environ['OPENBLAS_NUM_THREADS'], gc.get_freeze_count() > 50_000, file=sys.stderr)"
    done = run(past, "status", f"import atexit, gc, os, sys\natexit.register(lambda: {at_end})\n{DOOR}")

    assert f"THREADS {threads} True" in done.stderr
