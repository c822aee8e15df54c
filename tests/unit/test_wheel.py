"""What the package says that it needs: the pins of the clone fit, and everything that the product imports is named."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from homes.project import REPOSITORY
from rivertwice.local.install import direct_pins, normalized, select_unfit
from running.reader import DOCS_URL, REPOSITORY_URL, build_wheel
from running.site import VERSION

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


def test_a_build_that_is_given_no_address_makes_no_link_to_one(tmp_path: Path) -> None:
    metadata, shown = installed(build_wheel(tmp_path), tmp_path)
    assert "Project-URL" not in metadata
    assert metadata.get_payload().startswith("# rivertwice")
    assert re.findall(r"\]\((?!https?:)[^)]*\)", metadata.get_payload()) == []
    assert shown == {"page": "concepts", "text": (REPOSITORY / "docs/concepts.md").read_text(), "address": None}


def test_the_addresses_that_a_build_is_given_are_in_metadata_readme_and_docs(tmp_path: Path) -> None:
    given = {DOCS_URL: "https://docs.example/rivertwice/", REPOSITORY_URL: "https://code.example/rivertwice"}
    metadata, shown = installed(build_wheel(tmp_path, given), tmp_path)
    site = f"{given[DOCS_URL]}{VERSION}"
    assert metadata.get_all("Project-URL") == [f"Documentation, {site}", f"Repository, {given[REPOSITORY_URL]}"]
    assert shown["address"] == f"{site}/concepts.html"
    links = re.findall(r"\]\(([^)]*)\)", metadata.get_payload())
    assert len(links) > 40
    assert [link for link in links if not link.startswith((f"{site}/", f"{given[REPOSITORY_URL]}/blob/main/"))] == []
    for link in links:
        own = urlsplit(link.removeprefix(site)).path.removeprefix("/").replace(".html", ".md")
        assert not link.startswith(site) or (REPOSITORY / "docs" / own).is_file(), link


def installed(wheel: Path, folder: Path) -> tuple[Message, dict[str, Any]]:
    """Return a wheel's metadata, and what `rivertwice docs concepts` answers from it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    (text,) = (folder / "installed").glob("*.dist-info/METADATA")
    code = "import sys; sys.argv = ['rivertwice', '-o', 'json', 'docs', 'concepts']; from rivertwice.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder / "installed")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return message_from_string(text.read_text(encoding="utf-8")), json.loads(done.stdout)


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
