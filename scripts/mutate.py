"""Change the decisions, one small change at a time, and see whether those of their own unit tests that `make test` runs notice: `make test-mutations`.

Each decision module below is read from the project, changed in one place, and put into a copy of the project; there the
unit tests named beside it run, then those of its room. A change that no test notices survived, and is named. A module's tests must pass on the
copy before anything is changed, else a "killed" would mean nothing.

The sample follows from the seed and from the modules' code alone. Looked at before: mutmut 3 changes messages and call
arguments first, cannot take a sample by seed, and writes into the project; cosmic-ray 8 starts from a file changed in
place and brings eight packages. Neither removes a condition.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

PROJECT = Path(__file__).resolve().parent.parent
PACKAGE = "src/rivertwice"
COPIED = (
    ".ci",
    "src",
    "tests",
    "lab",
    "conftest.py",
    "scripts",
    "pipelines",
    "schemas",
    "expectations",
    "docs",
    "dags",
    "plugins",
    "pyproject.toml",
)
SLOW_S = 240
"""A test run that takes longer is taken as a loop without an end: the change is noticed."""

MODULES: dict[str, tuple[str, ...]] = {
    "agent/decide": (
        "agent/test_decide_running.py",
        "agent/test_decide_restart.py",
        "agent/test_decide_fall_back.py",
        "agent/test_contended_lease.py",
        "agent/test_decide_histories.py",
    ),
    "agent/backoff": (
        "agent/test_backoff.py",
        "agent/test_contended_lease.py",
        "agent/test_full_disk.py",
    ),
    "backfill/plan": ("backfill/test_plan.py", "backfill/test_hopping_plan.py", "backfill/test_late_queue.py"),
    "backfill/late_queue": ("backfill/test_late_queue.py",),
    "backfill/ranges": ("backfill/test_ranges.py", "backfill/test_hopping_plan.py"),
    "savepoint/prune": ("savepoint/test_prune.py",),
    "savepoint/plan": ("savepoint/test_plan.py", "savepoint/test_fallback.py"),
    "storage/lease_terms": ("storage/test_lease_terms.py",),
    "retention/view": ("retention/test_claims_and_view.py", "retention/test_retention_of_several_topics.py"),
    "log/leases": ("log/test_leases.py",),
    "timeline/lineage": ("timeline/test_lineage.py",),
    "timeline/serving": ("timeline/test_serving.py", "timeline/test_session_cover.py"),
    "reconcile/verdict": (
        "reconcile/test_verdict.py",
        "reconcile/test_verdict_edges.py",
        "reconcile/test_split_sessions.py",
        "reconcile/test_served_sessions.py",
        "reconcile/test_updates.py",
        "reconcile/test_dead_letters.py",
    ),
    "reconcile/model": (
        "reconcile/test_balance_edges.py",
        "reconcile/test_balance_and_gate.py",
        "reconcile/test_dead_letters.py",
    ),
    "reconcile/gate": ("reconcile/test_balance_and_gate.py",),
    "agent/prometheus": ("agent/test_rules.py", "agent/test_figures.py"),
}
"""Module to the files of `tests/unit` that prove it."""

SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One change of one module: the node with this number in `walk`'s order, and which of its changes."""

    module: str
    node: int
    variant: int
    line: int
    detail: str

    @property
    def name(self) -> str:
        """Where and what, in one line."""
        return f"{self.module}.py:{self.line} {self.detail}"


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that decide, in source order: no annotations, messages, docstrings, logging or type-only imports."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list"} or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_talk(child):
                yield from walk(child)


def _is_talk(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else node
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == "message" for one in node.targets):
        return True
    return isinstance(call, ast.Call) and ast.unparse(call.func).startswith("_log.")


def changes(node: ast.AST, *, in_bool: bool) -> list[ast.AST]:
    """Return the node's changed forms; `in_bool`: it is a return of a function that answers yes or no."""
    if isinstance(node, ast.Return):
        return [_with(node, value=ast.UnaryOp(ast.Not(), node.value))] if in_bool and node.value is not None else []
    if isinstance(node, ast.If | ast.IfExp):
        return [_with(node, test=ast.Constant(True)), _with(node, test=ast.Constant(False))]
    if isinstance(node, ast.comprehension):
        return [_with(node, ifs=[*node.ifs[:i], *node.ifs[i + 1 :]]) for i in range(len(node.ifs))]
    if isinstance(node, ast.Constant):
        return [_with(node, value=value) for value in _other_values(node.value)]
    return _other_operators(node)


def _other_values(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    return [value + 1, value - 1] if isinstance(value, int) else []


def _other_operators(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.Compare):
        return [
            _with(node, ops=[*node.ops[:index], other(), *node.ops[index + 1 :]])
            for index, op in enumerate(node.ops)
            for other in SWAPS.get(type(op), ())
        ]
    if isinstance(node, ast.BoolOp):
        swapped = [_with(node, op=other()) for other in SWAPS[type(node.op)]]
        return swapped + [_without(node, index) for index in range(len(node.values))]
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return [] if _is_joining(node) else [_with(node, op=other()) for other in SWAPS.get(type(node.op), ())]
    if isinstance(node, ast.UnaryOp):
        return [node.operand] if isinstance(node.op, ast.Not) else []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS and node.args:
        return [_with(node, func=ast.Name(CALLS[node.func.id], ast.Load()))]
    return []


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _without(node: ast.BoolOp, index: int) -> ast.AST:
    left = [*node.values[:index], *node.values[index + 1 :]]
    return left[0] if len(left) == 1 else _with(node, values=left)


def _is_joining(node: ast.BinOp | ast.AugAssign) -> bool:
    """Say whether `+` joins texts or lists here, where `-` would only be a type error."""
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value]
    joined = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple)
    return any(isinstance(s, joined) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides)


def _answers(tree: ast.AST) -> set[int]:
    """Return the ids of return statements of functions that answer yes or no."""
    functions = [
        n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and ast.unparse(n.returns or n.args) == "bool"
    ]
    return {id(n) for function in functions for n in ast.walk(function) if isinstance(n, ast.Return)}


def _first_line(node: ast.AST) -> str:
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 90 else f"{text[:87]}..."


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return every change of a module's source."""
    tree = ast.parse(source)
    answers, found, line = _answers(tree), [], 0
    for number, node in enumerate(walk(tree)):
        line = getattr(node, "lineno", line)
        for variant, changed in enumerate(changes(node, in_bool=id(node) in answers)):
            detail = f"`{_first_line(node)}` -> `{_first_line(changed)}`"
            found.append(Mutant(module, number, variant, line, detail))
    return found


def mutate(source: str, mutant: Mutant) -> str:
    """Return the module's source with the change."""
    tree = ast.parse(source)
    answers = _answers(tree)
    target = next(node for number, node in enumerate(walk(tree)) if number == mutant.node)
    changed = changes(target, in_bool=id(target) in answers)[mutant.variant]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return changed if node is target else self.generic_visit(node)

    return ast.unparse(ast.fix_missing_locations(Replace().visit(tree)))


def select_mutants(modules: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return a sample: as many of each module as of another, one more of the first ones where it does not divide."""
    chance = random.Random(seed)  # noqa: S311 (a sample, no secret)
    piles = []
    for module in modules:
        pile = mutants_of(module, (PROJECT / PACKAGE / f"{module}.py").read_text())
        chance.shuffle(pile)
        piles.append(pile)
    turns = [pile[turn] for turn in range(max(map(len, piles))) for pile in piles if turn < len(pile)]
    return sorted(turns[:count], key=lambda one: (modules.index(one.module), one.line, one.detail))


def make_copy(folder: Path) -> Path:
    """Copy what unit tests need of the project."""
    for name in COPIED:
        source, target = PROJECT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, target)
    return folder


def run_tests(folder: Path, files: Sequence[str]) -> tuple[bool, str]:
    """Return whether the tests pass in the copy, and the first that fails."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--no-header",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-p",
        "mutate",
        "-m",
        "quick",  # as `make test` runs them
    ]
    environment = os.environ | {
        "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder / 'scripts'}{os.pathsep}{folder}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "RIVERTWICE_PROJECT": str(folder),
    }
    tests = [f"tests/unit/{name}" for name in files]
    try:
        ended = subprocess.run(
            [*command, *tests], cwd=folder, env=environment, capture_output=True, text=True, timeout=SLOW_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"no end after {SLOW_S} s"
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return ended.returncode == 0, (lines or ended.stdout.splitlines()[-1:] or [ended.stderr[-200:]])[0]


def pytest_collection(session: object) -> None:
    """Hook of pytest: every property draws the same examples, and a failing one is not made smaller."""
    del session
    from hypothesis import Phase, settings

    settings.register_profile(
        "mutants", deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
    )
    settings.load_profile("mutants")


def judge(folder: Path, mutant: Mutant) -> tuple[bool, str]:
    """Return whether a change survives in the copy, and the test that noticed; the copy is as before afterwards."""
    path = folder / PACKAGE / f"{mutant.module}.py"
    source = path.read_text()
    try:
        path.write_text(mutate(source, mutant))
        survived, why = run_tests(folder, MODULES[mutant.module])
        return run_tests(folder, [mutant.module.partition("/")[0]]) if survived else (survived, why)
    finally:
        path.write_text(source)


def say(*lines: str) -> None:
    """Print lines at once, also into a file that somebody watches."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def run_sample(scratch: Path, modules: Sequence[str], sample: Sequence[Mutant], jobs: int) -> list[Mutant] | None:
    """Judge a sample in so many copies at the same time; return the survivors, or None if tests fail unchanged."""
    copies: Queue[Path] = Queue()
    for number in range(jobs):
        copies.put(make_copy(scratch / str(number)))

    def in_copy(work: Callable[[Path], tuple[bool, str]]) -> tuple[bool, str]:
        folder = copies.get()
        try:
            return work(folder)
        finally:
            copies.put(folder)

    with ThreadPoolExecutor(jobs) as pool:
        unchanged = pool.map(lambda name: in_copy(lambda folder: run_tests(folder, MODULES[name])), modules)
        broken = [f"  {name}: {why}" for name, (passed, why) in zip(modules, unchanged, strict=True) if not passed]
        if broken:
            say("these tests fail without any change, so a change would prove nothing:", *broken)
            return None
        survivors = []
        judged = pool.map(lambda one: in_copy(lambda folder: judge(folder, one)), sample)
        for mutant, (survived, why) in zip(sample, judged, strict=True):
            say(f"SURVIVED {mutant.name}" if survived else f"killed   {mutant.name}  [{why}]")
            survivors += [mutant] if survived else []
    return survivors


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sample; exit 1 if more survive than may, 2 if a module's tests fail without any change."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", help=f"only these: {', '.join(MODULES)}")
    parser.add_argument("--count", type=int, default=60, help="how many changes (60)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the sample (1)")
    parser.add_argument("--survivors", type=int, default=3, help="so many may survive (3)")
    parser.add_argument("--jobs", type=int, default=2, help="copies that work at the same time (2)")
    chosen = parser.parse_args(argv)
    unknown = [name for name in chosen.modules if name not in MODULES]
    if unknown:
        parser.error(f"no module {unknown[0]!r}; there are: {', '.join(MODULES)}")
    modules = list(chosen.modules or MODULES)
    began = time.monotonic()
    sample = select_mutants(modules, chosen.count, chosen.seed)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        survivors = run_sample(Path(scratch), modules, sample, chosen.jobs)
    if survivors is None:
        return 2
    killed = len(sample) - len(survivors)
    say(f"{killed} of {len(sample)} killed, seed {chosen.seed}, {time.monotonic() - began:.0f} s")
    say(*(f"  survived: {mutant.name}" for mutant in survivors))
    return 0 if len(survivors) <= chosen.survivors else 1


if __name__ == "__main__":
    sys.exit(main())
