"""What `docs/services.md` says is tested, run: each Python, the oldest versions of the ranges, and each Airflow that the registry has.

Each row installs the wheel into an environment of its own, without anything of this clone, and goes from a file of records to a verdict.
A row whose interpreter this machine lacks is skipped with that reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from homes.project import REPOSITORY
from running.tiers import in_turn
from running.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
UV = REPOSITORY / ".build" / "tools" / "bin" / "uv"
PAGE = (REPOSITORY / "docs" / "services.md").read_text()
START_HOUR = "2026-01-05T08"


@dataclass(frozen=True)
class Row:
    """One line of the page.

    Attributes:
        name: the first cell of the line.
        python: version of Python.
        wanted: packages beside the wheel, as `uv pip install` takes them.
        extras: of the wheel.
        resolution: `highest`, or `lowest-direct`: the oldest version of each range.
    """

    name: str
    python: str
    wanted: tuple[str, ...] = ()
    extras: str = "spark,quality,query"
    resolution: str = "highest"


ROWS = (
    Row("Python 3.11", "3.11"),
    Row("Python 3.12", "3.12", extras="spark,query"),
    Row("Python 3.13", "3.13"),
    Row("oldest packages", "3.11", extras="spark,quality,query,s3,postgres", resolution="lowest-direct"),
    Row("Airflow 3.3.0", "3.12", ("apache-airflow==3.3.0",), "airflow"),
    Row("Airflow 3.3.2", "3.13", ("apache-airflow==3.3.2",), "airflow"),
)


def interpreter(version: str) -> str | None:
    """Return the path of an interpreter of this version, of the search path or of pyenv; None if there is none."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *map(str, sorted(folder.glob(f"{version}.*/bin/python")))]
    for each in filter(None, candidates):
        done = subprocess.run(
            [each, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.stdout.strip() == version:
            return each
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([str(UV), "build", "-q", "--wheel", "--out-dir", str(folder), str(REPOSITORY)], check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture
def installed(tmp_path: Path, wheel: Path) -> Callable[[Row], Callable[[str], str]]:
    """Install a row and return what runs a command line in its folder."""

    def install(row: Row) -> Callable[[str], str]:
        python = interpreter(row.python)
        if python is None:
            pytest.skip(f"this machine has no Python {row.python}")
        venv, folder = tmp_path / "venv", tmp_path / "own"
        folder.mkdir()
        subprocess.run([python, "-m", "venv", "--without-pip", str(venv)], check=True)
        wanted = [f"{wheel}[{row.extras}]", *row.wanted]
        done = subprocess.run(
            [str(UV), "pip", "install", "-q", "--resolution", row.resolution, "--python", str(venv / "bin" / "python"), *wanted],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RIVERTWICE", "PYTHON", "AIRFLOW"))
        }
        env = inherited | {
            "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
            "RIVERTWICE_DOWNLOADS": str(REPOSITORY / ".build"),
            "RIVERTWICE_SPARK_MASTER": "local[2]",
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
        }

        def run(command: str) -> str:
            done = subprocess.run(
                ["bash", "-euc", command], cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            return done.stdout

        return run

    return install


def orders() -> str:
    """Return six hundred orders of ten hours, as lines of JSON."""
    values = (
        {
            "orderId": number,
            "shop": f"shop-{number % 3}",
            "amount": 1 + number % 50 / 4,
            "placedAt": f"2026-01-05T{8 + number // 60:02d}:{number % 60:02d}:00Z",
        }
        for number in range(600)
    )
    return "".join(json.dumps(value) + "\n" for value in values)


def verdicts(run: Callable[[str], str]) -> dict[str, int]:
    """Go from a file to the counts of the first reconcile."""
    run("rivertwice setup")
    run("rivertwice init --from-file orders.jsonl --window '1 hour' --watermark '1 hour'")
    run("rivertwice test orders")
    run("rivertwice up")
    try:
        run("rivertwice start orders")
        run("rivertwice send orders orders.jsonl --wait")

        def has_read() -> bool:
            (pipeline,) = json.loads(run("rivertwice --output json status"))["pipelines"]
            return pipeline["lag"] == 0 and (pipeline["watermark"] or "") > "2026-01-05T16"

        wait_for("the orders", has_read, 180, every=2.0)
        counts: dict[str, int] = json.loads(run("rivertwice --output json reconcile orders"))["counts"]["stream"]
        return counts
    finally:
        run("rivertwice down")


@pytest.mark.proves("guarantees.md#what-everything-needs")
def test_a_supported_environment_goes_from_a_file_to_a_verdict(
    tmp_path: Path, installed: Callable[[Row], Callable[[str], str]]
) -> None:
    (row,) = in_turn(ROWS)
    assert all(f"| {each.name} |" in PAGE for each in ROWS)
    run = installed(row)
    (tmp_path / "own" / "orders.jsonl").write_text(orders())
    counts = verdicts(run)
    assert (counts["DEFECT"], counts["LATE"], counts["NOT_COMPARABLE"]) == (0, 0, 0)
    assert counts["AGREES"] >= 24
    if "airflow" in row.extras:
        folder = run(
            "python -c 'from rivertwice.core.installed import find_shipped; from pathlib import Path; print(find_shipped(Path.cwd(), \"dags\"))'"
        ).strip()
        run("airflow db migrate")
        listed = run(
            f"AIRFLOW__CORE__DAGS_FOLDER={folder} AIRFLOW__CORE__LOAD_EXAMPLES=False airflow dags list-import-errors -l -o json"
        )
        assert json.loads(listed.splitlines()[-1]) == [], listed
