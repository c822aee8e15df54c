"""What tests and the pages for contributors look like: nothing loose, and no path that leads nowhere."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import grimp
import pytest
import yaml

from homes.project import REPOSITORY
from rivertwice.core.face import homes_of

TESTS = REPOSITORY / "tests"
LAB_TESTS = REPOSITORY / "lab" / "tests"
PAGES = ("CONTRIBUTING.md", "tests/README.md", "lab/README.md")
ENGINES = ("pyspark", "confluent_kafka", "deltalake", "boto3")
PURE_ROOMS = ("core",)
PURE_MODULES = (
    "agent.alert_kinds", "agent.alert_model", "agent.alert_routes", "agent.alert_sender", "agent.alert_store",
    "agent.backoff", "agent.decide", "agent.diagnose", "agent.prometheus",
    "backfill.late_queue", "backfill.plan", "backfill.ranges", "backfill.session_plan", "backfill.zones",
    "definition.definition", "definition.fingerprint", "definition.lint", "definition.schema_pins",
    "definition.source", "definition.windows",
    "reconcile.gate", "reconcile.model", "reconcile.sessions",
    "savepoint.manifest", "savepoint.operations.steps", "savepoint.records", "savepoint.trim",
    "timeline.counts", "timeline.digest", "timeline.serving",
)  # fmt: skip
FACE = 25
WIDER = {
    "agent": 73,
    "backfill": 59,
    "core": 116,
    "definition": 128,
    "engine": 79,
    "local": 35,
    "log": 101,
    "read": 39,
    "savepoint": 80,
    "storage": 38,
    "stream": 51,
    "timeline": 191,
    "versions": 44,
}
"""Faces that have more names than `FACE`, and how many: a number may fall, and is then written here; none may rise."""
AS_MODULES = {"log": {"kafka"}}
"""Modules that are imported as such, because their names are read with the module's: `kafka.end_offsets(...)`."""
FACES = sorted(
    path.parent.name
    for path in (REPOSITORY / "src/rivertwice").glob("*/__init__.py")
    if "lazy_names(" in path.read_text()
)
PATH = re.compile(r"(?:src|tests|lab|docs|pipelines|requirements|\.)[\w./-]*\.(?:py|md|json|toml|txt|yaml|lock)\Z")


def test_what_tests_share_lies_in_a_package_that_the_readme_describes() -> None:
    assert list(TESTS.glob("*.py")) == []
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and any(path.rglob("*.py"))} - {"__pycache__"}
    assert set(re.findall(r"^\| `(\w+)/` \|", (TESTS / "README.md").read_text(), re.MULTILINE)) == folders


@pytest.mark.parametrize("page", PAGES)
def test_a_page_for_contributors_names_files_that_exist(page: str) -> None:
    text = (REPOSITORY / page).read_text()
    named = [word for quoted in re.findall(r"`([^`\n]+)`", text) for word in quoted.split() if PATH.match(word)]
    assert named
    assert [path for path in named if not (REPOSITORY / path).exists()] == []
    assert [line for line in text.splitlines() if len(line) > 100 and not line.startswith("|")] == []


def test_every_make_target_that_a_page_names_exists() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", (REPOSITORY / page).read_text(), re.MULTILINE):
            assert f"\n{target}:" in makefile, (page, target)


def test_pre_commit_runs_what_make_lint_runs() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    sources = re.search(r"^SOURCES := (.*)$", makefile, re.MULTILINE)
    assert sources is not None
    (repository,) = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    lint = makefile.partition("\nlint:")[2].partition("\n\n")[0].replace("$(wildcard $(SOURCES))", sources[1])
    for hook in repository["hooks"]:
        assert (hook["language"], hook["pass_filenames"]) == ("system", False)
        assert hook["entry"].replace(".venv/bin", "$(BIN)") in lint
    assert lint.count("$(BIN)/") == len(repository["hooks"])


def test_what_decides_imports_no_engine_not_even_through_others() -> None:
    graph = grimp.build_graph("rivertwice", include_external_packages=True, exclude_type_checking_imports=True)
    # of a registry that is asked by commands alone, through Confluent's client
    graph.remove_module("rivertwice.definition.confluent")
    for importer, package, name in imports_from_faces():
        if importer == "rivertwice":  # made when `rivertwice.open` is called
            continue
        home = homes_of(f"rivertwice.{package}").get(name, f"rivertwice.{package}.{name}")
        graph.add_import(importer=importer, imported=home)
    rooms = [name for room in PURE_ROOMS for name in graph.find_descendants(f"rivertwice.{room}")]
    modules = [f"rivertwice.{name}" for name in PURE_MODULES]
    assert set(modules) <= graph.modules
    found = [graph.find_shortest_chain(module, engine) for module in (*rooms, *modules) for engine in ENGINES]
    assert [" > ".join(chain) for chain in found if chain] == []


@pytest.mark.parametrize(
    ("call", "homes"),
    [
        ("flock(", ["core/locks.py"]),
        ("start_new_session=", ["core/processes.py", "local/fork_server.py"]),
        ('"NOT_COMPARABLE"', ["timeline/verdicts.py"]),
        ("time.monotonic() +", ["core/waits.py"]),
        ("from tenacity", ["core/waits.py"]),
        ("attempt in range(", []),
        ("yaml.safe_load(", []),
        ("read_files(folder)", ["cli/schemas.py", "definition/bundle.py", "definition/definition.py"]),
    ],
)
def test_each_small_thing_of_the_product_has_one_place(call: str, homes: list[str]) -> None:
    """The fork server keeps pipes to what it starts, so it is no detached process."""
    product = REPOSITORY / "src" / "rivertwice"
    places = [path.relative_to(product) for path in sorted(product.rglob("*.py")) if call in path.read_text()]
    assert [str(path) for path in places] == homes


def test_no_module_reads_a_definition_twice() -> None:
    """A file that changes between two reads would be run by one meaning and recorded by another."""
    product = REPOSITORY / "src" / "rivertwice"
    texts = {path: path.read_text() for path in product.rglob("*.py")}
    both = [
        path for path, text in texts.items() if "load_definition(" in text and re.search(r"build\w*_bundle\(", text)
    ]
    assert both == []


@functools.cache
def imports_of_the_product() -> list[tuple[str, str, tuple[str, ...]]]:
    """Return (module, module that it imports from, names) of all imports in the product."""
    product = REPOSITORY / "src" / "rivertwice"
    found = []
    for path in product.rglob("*.py"):
        module = ".".join(("rivertwice", *path.relative_to(product).with_suffix("").parts)).removesuffix(".__init__")
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        found += [(module, node.module or "", tuple(alias.name for alias in node.names)) for node in imports]
    return found


def imports_from_faces() -> Iterator[tuple[str, str, str]]:
    """Yield (module, package, name) for each name that a module takes from the face of another package when it is loaded."""
    for module, source, names in imports_of_the_product():
        package = source.removeprefix("rivertwice.")
        if source == f"rivertwice.{package}" and package in FACES and module.split(".")[1:2] != [package]:
            yield from ((module, package, name) for name in names)


@pytest.mark.parametrize("package", FACES)
def test_a_package_that_has_a_face_is_entered_through_it_alone(package: str) -> None:
    product = REPOSITORY / "src" / "rivertwice"
    named = set(homes_of(f"rivertwice.{package}"))
    assert len(named) == WIDER.get(package, len(named))
    assert package in WIDER or len(named) <= FACE
    modules = {path.stem for path in (product / package).glob("*.py")} | {
        path.name for path in (product / package).iterdir()
    }
    assert not named & modules  # a module that was imported would hide the name
    around = [
        f"{module}: {source}"
        for module, source, _ in imports_of_the_product()
        if module.split(".")[1:2] != [package]
        and source.startswith(f"rivertwice.{package}.")
        and source != "rivertwice.core.face"  # by which faces are made
    ]
    assert around == (["rivertwice.errors: rivertwice.core.errors"] if package == "core" else [])  # a name of 0.1
    assert {name for _, of, name in imports_from_faces() if of == package} == named | AS_MODULES.get(package, set())
