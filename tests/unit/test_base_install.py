"""What the base does without any extra: the wheel's own files, in an interpreter that finds no package of an extra."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from homes.project import REPOSITORY
from rivertwice.core.extras import EXTRAS
from rivertwice.local.install import normalized
from running.reader import build_wheel

Run = Callable[..., subprocess.CompletedProcess[str]]
MOST_MB = 150
"""How large the base may be, installed."""
PARTS = {"py4j": "pyspark", "botocore": "boto3", "airflow": "apache-airflow", "opentelemetry": "opentelemetry-sdk"}
"""Module to the distribution that always brings it, or that has it as a part."""
ABSENT = """
import sys

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {modules}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent)
"""


def make_absent(folder: Path, modules: Iterable[str]) -> Path:
    """Return a folder which, on PYTHONPATH, makes an interpreter find none of some modules."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(ABSENT.format(modules=set(modules)))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return what runs `rivertwice` of the wheel in an empty project without the packages of any extra."""
    folder = tmp_path_factory.mktemp("base")
    packages, project = folder / "packages", folder / "project"
    project.mkdir()
    with zipfile.ZipFile(build_wheel(folder)) as wheel:
        wheel.extractall(packages)
    make_absent(packages, [module for modules in EXTRAS.values() for module in modules])
    rows = "".join(f"{n},shop-{n % 3},{1 + n / 4},2026-01-05T{8 + n // 60:02d}:{n % 60:02d}:00Z\n" for n in range(300))
    (project / "o.csv").write_text(f"order_id,shop,amount,placed_at\n{rows}")
    (project / "o.jsonl").write_text('{"k": "a", "at": "2026-01-05T08:00:00Z"}\n' * 20)
    (project / "o.parquet").write_bytes(b"PAR1" + bytes(64) + b"PAR1")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RIVERTWICE_", "PYTHON"))}
    places = {
        "RIVERTWICE_HOME": str(folder / "home"),
        "RIVERTWICE_DOWNLOADS": str(folder / "downloads"),
        "RIVERTWICE_BOOTSTRAP": "127.0.0.1:9",
    }

    def run_line(line: str, *program: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "ignore", *(program or ("-m", "rivertwice.cli.main")), *shlex.split(line)],
            env=inherited | places | {"PYTHONPATH": str(packages)}, cwd=project, capture_output=True, text=True, check=False,
        )  # fmt: skip

    made = run_line("init --from-file o.csv --window '1 hour' --watermark '10 minutes'")
    assert made.returncode == 0, made.stderr
    return run_line


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("--version", importlib.metadata.version("rivertwice")),
        ("--help", "Exit codes:"),
        ("look o.csv", "shop-2"),
        ("look o.jsonl", "records"),
        ("pipelines", "1 hour"),
        ("lint", "run `uv pip install 'rivertwice[spark]'`, then `rivertwice lint o`"),
        ("lint --without-spark", "expectations/o/windows.json: 2 critical, 1 warning expectations"),
        ("docs tutorial", "Tutorial"),
        ("init --example order_totals", "pipelines/order_totals/pipeline.yaml"),
        ("doctor", "uv pip install 'rivertwice[spark]'"),
    ],
)  # fmt: skip
@pytest.mark.proves("services.md#how-large-the-installation-is")
def test_the_base_does(run: Run, line: str, printed: str) -> None:
    done = run(line)
    assert done.returncode == (1 if line == "doctor" else 0), done.stdout + done.stderr
    assert "".join(printed.split()) in "".join(done.stdout.split())  # tables fold what is long


def test_a_topic_is_asked_for_at_the_broker(run: Run) -> None:
    done = run("look orders")
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr
    assert "not installed" not in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "status", "up", "setup", "start o", "down", "test o", "show o", "verdicts o", "reconcile o", "fix o",
        "try o", "advise o", "demo", "agent start", "agent run", "agent metrics o", "query 'select 1'", "look o.parquet",
        "backfill list o", "dead list o", "deliver status", "version list o", "upgrade o", "quality o",
        "explain o 2026-01-05T08:00Z",
    ],
)  # fmt: skip
@pytest.mark.proves("services.md#how-large-the-installation-is")
def test_what_needs_an_extra_says_so_in_one_sentence(run: Run, line: str) -> None:
    done = run(line)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].endswith("is not installed; run `uv pip install 'rivertwice[spark]'`")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 2


def test_the_server_for_assistants_names_its_own_extra(run: Run) -> None:
    done = run("mcp")
    assert done.returncode == 1
    assert done.stderr.endswith("this needs mcp, which is not installed; run `uv pip install 'rivertwice[mcp]'`\n")


def test_a_job_says_so_too(run: Run) -> None:
    done = run("--pipeline o", "-m", "rivertwice.shipped.spark_jobs.reconcile")
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("config: this needs ")
    assert "Traceback" not in done.stderr


def test_dags_are_parsed_without_what_computes(tmp_path: Path) -> None:
    """Avro and Protobuf are read, because the schemas that a definition pins are."""
    heavy = [*EXTRAS["spark"], *EXTRAS["quality"]]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "from rivertwice.airflow.factory import all_dags; print(len(list(all_dags())))"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(make_absent(tmp_path / "absent", heavy)), str(REPOSITORY / "src")]),
            "RIVERTWICE_PROJECT": str(REPOSITORY),
            "AIRFLOW_HOME": str(tmp_path),
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) == 5


def test_the_table_of_extras_has_what_the_package_declares() -> None:
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    owners = importlib.metadata.packages_distributions()
    for extra, modules in EXTRAS.items():
        named = {normalized(Requirement(line).name) for line in declared[extra]}
        for module in modules:
            brought_by = {PARTS[module]} if module in PARTS else {normalized(each) for each in owners[module]}
            assert brought_by & named, (extra, module)
    assert set(declared) - set(EXTRAS) == {"core", "airflow-thin", "all"}


def test_the_base_is_small() -> None:
    """Of what this environment has: the packages that the base needs, and those that they need."""
    document = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    closure([Requirement(line) for line in document["dependencies"]], found)
    assert found & {"pyspark", "pyarrow", "numpy", "pandas", "deltalake", "scipy", "great-expectations"} == set()
    files = [each for name in found for each in importlib.metadata.distribution(name).files or ()]
    size = sum(path.stat().st_size for each in files if (path := Path(str(each.locate()))).is_file())
    assert size < MOST_MB * 1e6


def closure(wanted: Collection[Requirement], found: set[str]) -> None:
    """Add the distributions that requirements bring, with their own requirements."""
    for each in wanted:
        extras = each.extras or {""}
        if each.marker is not None and not each.marker.evaluate({"extra": ""}):
            continue
        name = normalized(each.name)
        if name in found and extras == {""}:
            continue
        found.add(name)
        lines = importlib.metadata.requires(name) or []
        needed = [Requirement(line) for line in lines]
        chosen = [
            one
            for one in needed
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
        ]
        for one in chosen:
            one.marker = None
        closure([one for one in chosen if normalized(one.name) not in found], found)
