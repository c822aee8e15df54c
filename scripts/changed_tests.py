"""The tests that are nearest to what changed, for `make test-changed`: one file a line, the nearest first.

A test file is as far from a change as its imports: 0 if it changed itself, 1 if it imports a changed module, 2 if it
imports a module that does, and so on; grimp knows the graph of the product, the lab and the packages that tests share.
What is read by name and not imported (a command, a page, a definition) counts by its folder. Files are taken until
their stored durations fill the budget; the rest is counted on standard error, for `make test` to run.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import grimp

PROJECT = Path(__file__).resolve().parent.parent
TESTS = PROJECT / "tests"
DURATIONS = TESTS / "durations.json"
SHARED = ("boxes", "histories", "homes", "mistakes", "running", "servers", "simulated", "streams")
BY_FOLDER = {
    "docs/": ("tests/unit/test_tiers.py", "tests/unit/test_site.py"),
    "lab/docs/": ("tests/unit/test_tiers.py",),
    "dags/": ("tests/dags",),
    "expectations/": ("tests/expectations",),
    "pipelines/": ("tests/spark/test_example_pipelines.py",),
    "examples/": ("tests/spark/test_example_pipelines.py", "tests/integration/test_results.py"),
    "docker": ("tests/unit/test_deployment.py",),
    "pyproject.toml": ("tests/unit/test_project.py",),
    "requirements": ("tests/unit/test_project.py",),
}
"""Beginning of a path that no test imports, to the tests that read it."""
FARTHEST = 3
SECONDS_EACH = 0.5
"""What a file is taken to last that has no stored duration."""


def changed_files(base: str) -> list[str]:
    """Return the paths that differ from where the branch left `base`, uncommitted and new files among them."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True, check=True)  # noqa: S607 (the git of the clone)
        return done.stdout.splitlines()

    (fork,) = git("merge-base", base, "HEAD")
    return sorted({*git("diff", "--name-only", fork), *git("ls-files", "--others", "--exclude-standard")})


def module_of(path: str) -> str | None:
    """Return the module that a file of the product, the lab or the shared packages is, if it is one. Pure."""
    parts = Path(path).with_suffix("").parts
    if not path.endswith(".py") or parts[0] not in ("src", "lab", "tests") or Path(path).name.startswith("test_"):
        return None
    inner = parts if parts[0] == "lab" else parts[1:]
    if parts[0] == "tests" and inner[0] not in SHARED:
        return None
    return ".".join(inner[:-1] if inner[-1] == "__init__" else inner)


def distances(changed: Iterable[str], graph: grimp.ImportGraph) -> dict[str, int]:
    """Return how many imports lie between each module and the nearest changed one, up to `FARTHEST`."""
    found = {name: 1 for name in changed if name in graph.modules}
    front = {*found}
    for distance in range(2, FARTHEST + 1):
        front = {one for name in front for one in graph.find_modules_that_directly_import(name)} - {*found}
        found |= dict.fromkeys(front, distance)
    return found


def imports_of(path: Path) -> set[str]:
    """Return the modules that a test file imports: of `from a.b import c`, both `a.b` and `a.b.c`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def order(files: Mapping[str, set[str]], changed: Sequence[str], near: Mapping[str, int]) -> dict[str, int]:
    """Return the distance of each test file that a change concerns. Pure.

    Args:
        files: test file to the modules that it imports.
        changed: paths that changed.
        near: module to its distance from a changed one.
    """
    packages = {Path(one).parts[2] for one in changed if one.startswith("src/rivertwice/") and len(Path(one).parts) > 3}
    found: dict[str, int] = {}
    for name, imported in files.items():
        each = [near[one] for one in imported if one in near]
        each += [0] if name in changed else []
        each += [
            1
            for one in changed
            for start, tests in BY_FOLDER.items()
            if one.startswith(start) and name.startswith(tests)
        ]
        each += [2] if name.startswith(tuple(f"tests/unit/{package}/" for package in packages)) else []
        if each:
            found[name] = min(each)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the files; exit 0 also where there are none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default="origin/main", help="compare with where the branch left this (origin/main)")
    parser.add_argument(
        "--seconds", type=float, default=300, help="how long the tests may last in all, on one core (300)"
    )
    chosen = parser.parse_args(argv)
    changed = changed_files(chosen.base)
    sys.path[:0] = [str(TESTS), str(PROJECT)]
    graph = grimp.build_graph("rivertwice", "lab", *SHARED)
    near = distances([module for path in changed if (module := module_of(path))], graph)
    files = {
        str(path.relative_to(PROJECT)): imports_of(path)
        for folder in (TESTS, PROJECT / "lab")
        for path in folder.rglob("test_*.py")
    }
    lasting: dict[str, float] = defaultdict(float)
    for test, seconds in json.loads(DURATIONS.read_text()).items():
        lasting[test.partition("::")[0]] += seconds
    found = order(files, changed, near)
    spent, taken = 0.0, []
    for name in sorted(found, key=lambda one: (found[one], lasting.get(one, SECONDS_EACH), one)):
        spent += lasting.get(name, SECONDS_EACH)
        if found[name] and spent > chosen.seconds:
            break
        taken.append(name)
    sys.stderr.write(
        f"{len(changed)} files changed: {len(taken)} of the {len(found)} test files near them; `make test` has the others\n"
    )
    sys.stdout.write("".join(f"{name}\n" for name in taken))
    return 0


if __name__ == "__main__":
    sys.exit(main())
