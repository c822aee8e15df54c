"""Great Expectations is imported only to judge, without what that does not need, and without racing PySpark for IPython."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from homes.project import REPOSITORY

LIGHT = """
import sys
from rivertwice.quality.engine import known_types, load_expectations

suite = load_expectations("s", [{"type": "expect_column_to_exist", "kwargs": {"column": "n"}, "severity": "critical"}], "s.json")
assert "expect_column_kl_divergence_to_be_less_than" in known_types()
heavy = ("IPython", "altair", "boto3", "botocore", "pyspark.ml", "pyspark.sql.connect", "scipy", "sqlalchemy")
assert not [name for name in heavy if name in sys.modules], sorted(set(heavy) & set(sys.modules))

import altair, boto3, pyspark.ml.feature, scipy.stats, sqlalchemy
assert altair.Chart and boto3.client and scipy.stats.entropy([1]) == 0 and sqlalchemy.text("1").text == "1"
"""

BESIDE = '''
import sys, threading
from importlib.machinery import PathFinder
from rivertwice.quality import engine

reached, go = threading.Event(), threading.Event()

class Pause:
    """Pauses the thread where it runs a module: whoever pauses in `find_spec` holds the lock of all imports."""

    def find_spec(self, name, path=None, target=None):
        if name != "great_expectations.checkpoint":
            return None
        spec = PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def pause(module):
            reached.set()
            assert go.wait(300)
            run(module)

        spec.loader.exec_module = pause
        return spec

sys.meta_path.insert(0, Pause())
engine.warm_up_beside()
assert reached.wait(300)
assert isinstance(sys.modules["scipy"], engine._StandIn), "the thread is in the middle of its import"
import scipy.sparse, scipy.stats, sqlalchemy
assert scipy.sparse.eye(2).sum() == 2 and scipy.stats.entropy([1]) == 0 and sqlalchemy.text("1").text == "1"
go.set()
assert "expect_column_to_exist" in engine.known_types()
assert "IPython" not in sys.modules, "else PySpark may import it at the same time"
import scipy
assert scipy.linalg.norm([3, 4]) == 5
'''

JUDGED = """
import json, sys
from pathlib import Path
from homes.backfill import make_home
from homes.ledger import NOW
from homes.quality import between, expect, serve, write_suite
from rivertwice.quality.windows import judge_windows

settings, home, bundle = make_home(Path(sys.argv[1]))
serve(home, (0, "a", 5), (1, "a", 5), (1, "b", 50), (2, "a", 500))

def judge(run):
    check = judge_windows(settings, home, bundle.definition, lambda: 1 / 0, None, run, NOW)
    return [(each.state, each.observed) for each in check.judgements]

write_suite(settings, "windows", between(max_value=500), expect("expect_column_mean_to_be_between", column="n", max_value=10))
found = {"plain": judge("r1"), "before": "scipy" in sys.modules}
even = {"values": ["a", "b"], "weights": [0.5, 0.5]}
divergence = "expect_column_kl_divergence_to_be_less_than"
write_suite(
    settings, "windows",
    expect(divergence, column="k", partition_object=even, threshold=0.1),
    expect(divergence, column="k", partition_object=even, threshold=0.2),
    expect("expect_column_value_z_scores_to_be_less_than", column="n", threshold=1.4, double_sided=True),
)
print(json.dumps({**found, "scipy": judge("r2"), "after": "scipy.stats" in sys.modules, "altair": "altair" in sys.modules}))
"""

VERBS = """
import sys
from click.testing import CliRunner
from rivertwice.cli.main import cli

done = CliRunner().invoke(cli, ["--project", sys.argv[1], *sys.argv[2:]], catch_exceptions=False)
assert done.exit_code in (0, 1), done.output
assert not {"great_expectations", "scipy"} & set(sys.modules), done.output
print(done.output)
"""


def run(program: str, *arguments: str) -> str:
    """Run a program in a process of its own and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY / 'tests'}", "HOME": "/nowhere"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_judging_imports_no_more_than_it_needs() -> None:
    run(LIGHT)


def test_another_thread_imports_the_real_modules_meanwhile() -> None:
    run(BESIDE)


def test_a_users_suite_gets_scipy_when_it_needs_it(tmp_path: Path) -> None:
    found: dict[str, Any] = json.loads(run(JUDGED, str(tmp_path)))
    assert [state for state, _ in found["plain"]] == ["passed", "failed"]
    assert (found["before"], found["after"], found["altair"]) == (False, True, False)
    states, observed = zip(*found["scipy"], strict=True)
    assert states == ("failed", "passed", "failed")
    assert float(observed[0]) == pytest.approx(0.1308, abs=1e-4)  # 0.75 ln 1.5 + 0.25 ln 0.5


@pytest.mark.parametrize("verb", [("status",), ("lint", "p", "--without-spark"), ("backfill", "list", "p")])
def test_verbs_that_judge_no_rows_do_without_great_expectations(tmp_path: Path, verb: tuple[str, ...]) -> None:
    run(
        "import sys; from pathlib import Path; from homes.backfill import make_home; make_home(Path(sys.argv[1]))",
        str(tmp_path),
    )
    assert run(VERBS, str(tmp_path), *verb)
