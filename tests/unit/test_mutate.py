"""The mutation run names modules and tests that there are: a module that moved away would end it."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from homes.project import REPOSITORY


def test_each_mutated_module_and_each_of_its_tests_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("mutate", REPOSITORY / "scripts" / "mutate.py")
    assert spec is not None
    assert spec.loader is not None
    mutate = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutate", mutate)  # its dataclasses look their module up
    spec.loader.exec_module(mutate)
    for module, tests in mutate.MODULES.items():
        assert (REPOSITORY / "src" / "rivertwice" / f"{module}.py").is_file(), module
        assert tests
        assert [test for test in tests if not (REPOSITORY / "tests" / "unit" / test).is_file()] == [], module
