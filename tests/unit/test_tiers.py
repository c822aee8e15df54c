"""Which tests a run takes: `make test`, a share of the rest, what is near a change; and the page of what proves what."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from homes.project import REPOSITORY
from running.tiers import SHARES, file_of, in_turn, is_quick, longest_files_first, share_of


def load_script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("marks", "quick"),
    [
        ((), True),
        (("parametrize", "proves"), True),
        (("spark",), False),
        (("kafka", "spark", "core"), True),
        (("airflow",), False),
        (("long",), False),
        (("faults", "kafka"), False),
    ],
)
def test_make_test_takes_what_needs_nothing_and_what_is_core(marks: tuple[str, ...], quick: bool) -> None:
    assert is_quick(marks) is quick


def test_the_nearest_tests_of_a_change_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    changed_tests = load_script("changed_tests", monkeypatch)
    files = {
        "tests/unit/backfill/test_a.py": {"rivertwice.backfill.plan"},
        "tests/unit/backfill/test_b.py": {"rivertwice.cli.main"},
        "tests/unit/log/test_c.py": {"rivertwice.log.kafka"},
        "tests/spark/test_d.py": {"streams.kinds"},
        "tests/unit/log/test_e.py": {"rivertwice.log.kafka"},
        "tests/dags/test_f.py": {"airflow"},
    }
    changed = ["src/rivertwice/backfill/plan.py", "tests/unit/log/test_e.py", "dags/backfill.py"]
    near = {"rivertwice.backfill.plan": 1, "streams.kinds": 3}
    assert changed_tests.order(files, changed, near) == {
        "tests/unit/backfill/test_a.py": 1,
        "tests/unit/backfill/test_b.py": 2,
        "tests/spark/test_d.py": 3,
        "tests/unit/log/test_e.py": 0,
        "tests/dags/test_f.py": 1,
    }


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("src/rivertwice/backfill/plan.py", "rivertwice.backfill.plan"),
        ("src/rivertwice/storage/__init__.py", "rivertwice.storage"),
        ("tests/homes/project.py", "homes.project"),
        ("lab/model/schedule.py", "lab.model.schedule"),
        ("tests/unit/test_cli.py", None),
        ("tests/conftest.py", None),
        ("docs/index.md", None),
    ],
)
def test_a_changed_file_is_a_module_or_none(path: str, module: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_script("changed_tests", monkeypatch).module_of(path) == module


@pytest.mark.parametrize(("count", "landings"), [(1, 35), (2, 21), (5, 7)])
def test_in_some_rounds_of_landings_each_case_has_its_turn(count: int, landings: int) -> None:
    turns = [in_turn("abcde", count, landing) for landing in range(landings)]
    assert {len(turn) for turn in turns} == {count}
    assert all(turn == turns[0] for turn in turns[:SHARES])  # whichever share a test is in
    assert {case for turn in turns for case in turn} == set("abcde")


def test_seven_landings_in_a_row_run_each_file_once_in_shares_that_last_equally_long() -> None:
    tests = [f"tests/test_{number}.py::test_{case}" for number in range(40) for case in range(3)]
    durations = {test: float(number) for number, test in enumerate(tests)}
    seconds = longest_files_first(tests, durations)
    shares = [share_of(seconds, landing) for landing in range(13, 13 + SHARES)]
    assert sorted(name for share in shares for name in share) == sorted({file_of(test) for test in tests})
    assert list(seconds.items())[::39] == [("tests/test_39.py", 117.0 + 118 + 119), ("tests/test_0.py", 0.0 + 1 + 2)]
    lengths = [sum(seconds[name] for name in share) for share in shares]
    assert max(lengths) - min(lengths) < max(seconds.values())


def test_each_section_that_a_test_proves_is_in_the_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    site_proofs = load_script("site_proofs", monkeypatch)
    proofs = site_proofs.all_proofs()
    assert len(proofs) > 200
    assert site_proofs.wrong_sections(proofs) == []
    assert site_proofs.wrong_sections([site_proofs.Proof("howto-correct.md#not-there", "a", 0)]) != []


def test_each_guarantee_names_tests_that_say_that_they_prove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site_proofs = load_script("site_proofs", monkeypatch)
    proofs = site_proofs.all_proofs()
    page = site_proofs.page_path("guarantees.md")
    bare = [anchor for anchor, text in site_proofs.sections(page).items() if not site_proofs.named_in(text)]
    assert bare == ["what-is-guaranteed-if-what", "what-is-not-guaranteed"]
    assert site_proofs.unproved("guarantees.md", proofs) == []

    rotten = (
        "# Page\n\n## One\n\n| if | shown by |\n|---|---|\n| a | [it holds](../tests/unit/test_a.py) |\n| b | - |\n"
    )
    (tmp_path / "page.md").write_text(rotten + "\n## Two\n\nShown by: `F1`.\n")
    monkeypatch.setattr(site_proofs, "DOCS", tmp_path)
    known = [site_proofs.Proof("page.md#two", "faults run --case F1", 2), site_proofs.Proof("page.md#two", "b", 0)]
    assert site_proofs.unproved("page.md", known) == [
        "one: no test: | b | - |",
        "one: unit/test_a.py::test_it_holds does not say that it proves this section",
        "two: b is not named",
    ]


def test_the_mutation_run_names_modules_and_tests_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate = load_script("mutate", monkeypatch)
    for module, tests in mutate.MODULES.items():
        assert (REPOSITORY / "src" / "rivertwice" / f"{module}.py").is_file(), module
        assert tests
        assert [test for test in tests if not (REPOSITORY / "tests" / "unit" / test).is_file()] == [], module
