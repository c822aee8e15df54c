"""Every fixture that a test asks for exists: slow tests run seldom, and one that asks for a renamed fixture would rest unseen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from homes.project import REPOSITORY

ROOTS = (REPOSITORY / "tests", REPOSITORY / "lab" / "tests")
FILES = sorted(path for root in ROOTS for path in root.rglob("test_*.py"))
PYTESTS_OWN = {
    "tmp_path",
    "tmp_path_factory",
    "monkeypatch",
    "record_property",
    "capsys",
    "capfd",
    "caplog",
    "request",
    "recwarn",
    "pytestconfig",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    """Yield the functions of a module, and those of its classes."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def decorators(function: Function) -> Iterator[tuple[str, ast.expr]]:
    for each in function.decorator_list:
        yield ast.unparse(each.func if isinstance(each, ast.Call) else each), each


def parameters(function: Function, of_file: set[str]) -> set[str]:
    """Return the names that `parametrize` gives a function: to a fixture and through a decorator of the file, any name of the file."""
    names: set[str] = set()
    for name, each in decorators(function):
        if name == "pytest.fixture" or "." not in name:
            names |= of_file
        if name.endswith("parametrize") and isinstance(each, ast.Call):
            given = ast.literal_eval(each.args[0])
            names |= {part.strip() for part in given.split(",")} if isinstance(given, str) else set(given)
    return names


def parametrized(tree: ast.Module) -> set[str]:
    """Return the names that a file parametrizes anywhere: first arguments of `parametrize`, and `others` of its own decorators."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    given = [call.args[0] for call in calls if ast.unparse(call.func).endswith("parametrize")]
    given += [word.value for call in calls for word in call.keywords if word.arg == "others"]
    texts = [leaf.value for node in given for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)]
    return {part.strip() for text in texts if isinstance(text, str) for part in text.split(",")}


def fixtures(tree: ast.Module) -> set[str]:
    """Return the fixtures that a module defines, and all that it imports: some are imported."""
    own = {function.name for function in functions(tree) if any("fixture" in name for name, _ in decorators(function))}
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return own | imported


def unknown_fixtures(path: Path, shared: set[str]) -> list[str]:
    """Return what tests and fixtures of a file ask for and nobody defines."""
    tree = ast.parse(path.read_text())
    known = shared | fixtures(tree) | PYTESTS_OWN
    of_file = parametrized(tree)
    unknown = []
    for function in functions(tree):
        names = [name for name, _ in decorators(function)]
        is_fixture = any("fixture" in name for name in names)
        if not (function.name.startswith("test_") or is_fixture) or any(name.endswith("given") for name in names):
            continue
        asked = {argument.arg for argument in [*function.args.args, *function.args.kwonlyargs]} - {"self", "cls"}
        unknown += [f"{function.name}: {name}" for name in sorted(asked - known - parameters(function, of_file))]
    return unknown


def conftests(path: Path) -> set[str]:
    """Return the fixtures of the conftest files above a file."""
    folders = [folder for folder in path.parents if folder == REPOSITORY or REPOSITORY in folder.parents]
    files = [folder / "conftest.py" for folder in folders if (folder / "conftest.py").is_file()]
    return set().union(*(fixtures(ast.parse(file.read_text())) for file in files))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPOSITORY)).removeprefix("tests/"))
def test_the_fixtures_that_a_file_asks_for_exist(path: Path) -> None:
    assert unknown_fixtures(path, conftests(path)) == []


def test_a_fixture_that_nobody_defines_is_found(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text("def test_it(tmp_path, judged_spark): ...\n")
    assert unknown_fixtures(file, set()) == ["test_it: judged_spark"]
