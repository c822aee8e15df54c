"""What the package says that it needs: the pins of the clone fit, and everything that the product imports is named."""

from __future__ import annotations

import ast
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

from homes.project import REPOSITORY
from rivertwice.local.install import direct_pins, normalized, select_unfit
from running.reader import build_wheel

BROUGHT_BY = {
    "py4j": "pyspark",
    "botocore": "boto3",
    "urllib3": "boto3",
    "airflow": "apache-airflow",
    "fastapi": "apache-airflow",
    "sqlalchemy": "apache-airflow",
    "itsdangerous": "apache-airflow",
    "openlineage": "openlineage-python",
}
"""Module to the package that has it as a part, or that always installs it."""
OF_DEVELOPERS = ("all", "polars", "openlineage")
"""Extras that are pinned for developers alone, or that name others."""


def requirements(project: Path) -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """Return what is always needed, and what each extra needs."""
    document = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    extras = {name: list(map(Requirement, lines)) for name, lines in document["optional-dependencies"].items()}
    return list(map(Requirement, document["dependencies"])), extras


def test_the_pins_of_the_clone_fit_the_ranges(project: Path) -> None:
    needed, extras = requirements(project)
    pins = direct_pins((project / "requirements.txt").read_text())
    wanted = [*needed, *(each for name in extras if name not in OF_DEVELOPERS for each in extras[name])]
    wanted = [each for each in wanted if each.name != "rivertwice"]
    pinned = [each for each in wanted if normalized(each.name) in pins]
    assert {each.name for each in wanted if each not in pinned} == {"numpy", "packaging"}  # others bring them
    assert [each.name for each in pinned if not each.specifier.contains(pins[normalized(each.name)])] == []


def test_everything_that_is_imported_is_needed_or_an_extra(project: Path) -> None:
    needed, extras = requirements(project)
    named = {normalized(each.name) for each in (*needed, *(one for lines in extras.values() for one in lines))}
    owners = packages_distributions()
    unnamed: dict[str, str] = {}
    for file in (project / "src").rglob("*.py"):
        for module in imported(file) - sys.stdlib_module_names - {"rivertwice"}:
            brought_by = [BROUGHT_BY[module]] if module in BROUGHT_BY else owners.get(module, [module])
            if not {normalized(owner) for owner in brought_by} & named:
                unnamed[module] = str(file.relative_to(project))
    assert unnamed == {}


def test_the_wheel_has_nothing_of_the_lab(tmp_path: Path) -> None:
    """Neither its packages, under their names of today or of 0.1, nor an import of it, nor its verbs."""
    names = {path.name for path in (REPOSITORY / "lab").iterdir() if path.is_dir()} - {"demo", "__pycache__"}
    assert {"faults", "flights", "model", "oracle", "control", "bench", "tests"} <= names
    with zipfile.ZipFile(build_wheel(tmp_path)) as wheel:
        files = [Path(name) for name in wheel.namelist()]
        assert Path("rivertwice/agent/dashboard.json") in files
        sources = {path: wheel.read(str(path)).decode() for path in files if path.suffix == ".py"}
        (entries,) = [wheel.read(str(path)).decode() for path in files if path.name == "entry_points.txt"]
    assert len(sources) > 500
    assert {path.parts[0].partition("-")[0] for path in files} == {"rivertwice"}
    assert [path for path in sources if path.parts[1] in {*names, "lab", "testing"}] == []
    assert [path for path, text in sources.items() if "lab" in modules_in(text)] == []
    assert "rivertwice.commands" not in entries


def imported(file: Path) -> set[str]:
    """Return the top-level modules that a file imports."""
    return modules_in(file.read_text())


def modules_in(text: str) -> set[str]:
    """Return the top-level modules that a source imports."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules.add(node.module.partition(".")[0])
    return modules


def test_a_package_that_does_not_fit_is_named_with_its_range() -> None:
    wanted = ["click<9,>=8.3", 'pyspark-client==4.2.*; extra == "airflow"', 'boto3<2; extra == "s3"', "rich>=14"]
    assert select_unfit(wanted, {"click": "8.5.1", "rich": "15.0.0"}) == []
    assert select_unfit(wanted, {"click": "8.1", "pyspark-client": "4.3.0"}) == [
        "click is 8.1, not <9,>=8.3",
        "pyspark-client is 4.3.0, not ==4.2.*",
        "rich is not installed, not >=14",
    ]
