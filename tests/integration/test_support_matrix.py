"""What `docs/support.md` says is tested, run: each Spark and Python, the oldest versions of the ranges, each Airflow that the registry has.

Each row installs the wheel into an environment of its own, without anything of this clone, and goes from a file of records to a verdict.
A row whose interpreter this machine lacks is skipped with that reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from homes.project import REPOSITORY, edit_yaml
from rivertwice.core.spark_versions import SparkVersion
from running.tiers import in_turn
from running.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
UV = REPOSITORY / ".build" / "tools" / "bin" / "uv"
PAGE = (REPOSITORY / "docs" / "support.md").read_text()
START = datetime(2026, 1, 5, 8, tzinfo=UTC)
SPARKS = ("4.0.2", "4.1.2", "4.2.0")
"""The newest of each line that has a Kafka connector, in the order in which a pipeline goes through them."""


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
            "RIVERTWICE_DOWNLOADS": str(downloads(tmp_path / "downloads")),
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


def downloads(folder: Path) -> Path:
    """Make a folder of what set-up fetched for the clone, but for class archives: a test's own would push the clone's out."""
    folder.mkdir()
    for path in (REPOSITORY / ".build").iterdir():
        if path.name != "jvm":
            (folder / path.name).symlink_to(path)
    return folder


def order(number: int, minute: int) -> dict[str, Any]:
    """Return an order of a minute after the start."""
    placed = (START + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"orderId": number, "shop": f"shop-{number % 3}", "amount": 1 + number % 50 / 4, "placedAt": placed}


def lines(orders: Iterable[dict[str, Any]]) -> str:
    """Return orders as lines of JSON."""
    return "".join(json.dumps(each) + "\n" for each in orders)


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
    (tmp_path / "own" / "orders.jsonl").write_text(lines(order(number, number) for number in range(600)))
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


class Shop:
    """A pipeline `orders`, driven by the command line, and what its results must be."""

    def __init__(self, run: Callable[[str], str], folder: Path) -> None:
        self._run, self._folder = run, folder
        self.sent: list[dict[str, Any]] = []

    def command(self, words: str) -> Any:
        return json.loads(self._run(f"rivertwice --output json {words}"))

    def send(self, *orders: dict[str, Any]) -> None:
        file = self._folder / f"{len(self.sent)}.jsonl"
        file.write_text(lines(orders))
        self._run(f"rivertwice send orders {file.name} --wait")
        self.sent += orders

    def take(self) -> str:
        savepoint: str = self.command("savepoint take orders")["id"]
        return savepoint

    def prove_and_restore(self, savepoint: str) -> None:
        """Prove a savepoint by at least one recorded batch that the running Spark computes again, and continue from it."""
        proof = self.command(f"savepoint prove orders {savepoint} --batches 1")
        assert proof["batches"] >= 1, proof
        self.command(f"savepoint restore orders {savepoint} --yes")

    def refusal_of_partitions(self) -> str | None:
        """Return why an upgrade to another number of state partitions is refused; it is planned, not done."""
        path = self._folder / "pipelines" / "orders" / "pipeline.yaml"
        text = path.read_text()
        edit_yaml(path.parent, lambda document: document.setdefault("stream", {}).update(shuffle_partitions=5))
        plan = self.command("upgrade orders --dry-run || true")
        path.write_text(text)
        assert plan["partitions"][1] == 5
        refusal: str | None = plan["refusal"]
        return refusal

    def totals(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Return the number and the sum of the orders of each hour and shop."""
        found: dict[tuple[str, str], tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        for each in self.sent:
            cell = (f"{each['placedAt'][:13]}:00:00Z", each["shop"])
            found[cell] = (found[cell][0] + 1, found[cell][1] + each["amount"])
        return dict(found)


@pytest.mark.proves("support.md#versions-of-spark")
def test_a_pipeline_goes_from_spark_to_spark_and_each_proves_the_savepoint_of_the_one_before(
    tmp_path: Path, installed: Callable[[Row], Callable[[str], str]]
) -> None:
    """On each: streamed to the log's end, a savepoint taken, proved and restored, reconciled, a late window backfilled."""
    assert all(f"| {version} |" in PAGE for version in SPARKS)
    run = installed(Row("Spark", "3.11", (f"pyspark=={SPARKS[0]}",), "spark,query"))
    shop = Shop(run, tmp_path / "own")
    crossing = ""
    try:
        for turn, version in enumerate(SPARKS):
            run(f"{UV} pip install -q --python $(command -v python) 'pyspark=={version}'")
            run("rivertwice setup")
            first = turn * 1000
            stretch = [order(first + number, first + number) for number in range(900)]
            if not turn:
                (tmp_path / "own" / "sample.jsonl").write_text(lines(stretch))
                run("rivertwice init orders --from-file sample.jsonl --window '1 hour' --watermark '1 hour'")
            (spark,) = [each for each in shop.command("doctor") if each["name"] == "spark"]
            assert spark["found"].partition(";")[0] == f"Spark {version}"
            run("rivertwice test orders")
            run("rivertwice up")
            if not turn:
                run("rivertwice start orders")
            else:
                shop.prove_and_restore(crossing)
            shop.send(*stretch[:300])
            taken = shop.take()
            shop.send(*stretch[300:600], order(first + 950, first))
            shop.prove_and_restore(taken)
            counts = shop.command("reconcile orders --full")["counts"]["stream"]
            assert (counts["DEFECT"], counts["LATE"], counts["NOT_COMPARABLE"]) == (0, turn + 1, 0)
            run("rivertwice backfill run orders --yes")
            assert shop.command("reconcile orders --full")["counts"]["served"]["LATE"] == 0
            refusal = shop.refusal_of_partitions()
            assert (refusal is None) == SparkVersion(version).has("repartition")
            assert refusal is None or f"needs Spark 4.2; this is {version}; put " in refusal
            crossing = shop.take()
            shop.send(*stretch[600:])
            served = shop.command("show orders --limit 10000")["rows"]
            totals = shop.totals()
            found = {(row["window_start"], row["shop"]): (row["records"], float(row["amount_sum"])) for row in served}
            assert found == {cell: totals[cell] for cell in found}
            assert len(totals) - len(found) <= 9  # the last hours are open
            run("rivertwice down")
    finally:
        run("rivertwice down")
