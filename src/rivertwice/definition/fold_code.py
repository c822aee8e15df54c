"""The text of a `fold.py`: what it may contain, and which part of it decides the results. Pure; the code is not run here.

A fold runs once per event in the stream and again in every recompute, so it may depend only on the state and the event.
Other dependencies that the text shows are refused. The text cannot show all of them: for example, a set of texts has
another order in another process, and the fold may put it unsorted into a result. A reconcile reports those as a DEFECT.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

from rivertwice.core import DefinitionError

MODULES = frozenset(
    {"__future__", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions"}
    | {
        "functools",
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "statistics",
        "string",
        "typing",
        "unicodedata",
    }
)
"""Modules of Python's library that return the same result for the same input, on any machine and at any time."""
_CLOCK = frozenset({"now", "today", "utcnow", "fromtimestamp", "utcfromtimestamp"})
_BUILTINS = frozenset(
    {"open", "input", "print", "exec", "eval", "compile", "__import__", "globals", "locals", "vars", "id", "hash"}
    | {"breakpoint", "memoryview", "getattr", "setattr", "delattr", "object", "__builtins__", "__loader__", "__spec__"}
)
_MUTATORS = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "pop", "popitem", "popleft"}
    | {"remove", "reverse", "rotate", "setdefault", "sort", "subtract", "update"}
)
_CONSTANT_CALLS = frozenset(
    {"Decimal", "Fraction", "timedelta", "datetime", "date", "time", "timezone", "frozenset", "tuple", "compile"}
)
_LIFT = ", or disable the comparison with compare: false"


def check_fold(text: str, where: str, *, compared: bool) -> None:
    """Refuse a `fold.py` that has no `fold(state, event)`, or whose text shows another dependency.

    Raises:
        DefinitionError: every finding with its line and its remedy.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        message = f"{where} is not valid Python: {error}; correct it"
        raise DefinitionError(message) from None
    findings = list(_shape_findings(tree))
    if compared:
        findings += [finding + _LIFT for finding in _impurities(tree)]
    if findings:
        raise DefinitionError("\n".join(f"{where}: {finding}" for finding in dict.fromkeys(findings)))


def normalise_fold(text: str) -> str:
    """Return the text without comments and blank lines; two folds are the same exactly if these texts are equal.

    The lines of a string literal of several lines are not changed.
    """
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    literal_lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            literal_lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return "\n".join(
        line if number in literal_lines else line.rstrip()
        for number, line in enumerate(lines, 1)
        if number in literal_lines or line.strip()
    )


def _shape_findings(tree: ast.Module) -> Iterator[str]:
    folds = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "fold"]
    if len(folds) != 1:
        yield f"defines fold {len(folds)} times at its top level; it needs exactly one: def fold(state, event)"
        return
    fold = folds[0]
    names = [argument.arg for argument in fold.args.args]
    extra = fold.args.posonlyargs or fold.args.kwonlyargs or fold.args.vararg or fold.args.kwarg or fold.args.defaults
    if len(names) != 2 or extra or fold.decorator_list:
        yield f"line {fold.lineno}: fold takes ({ast.unparse(fold.args)}); it is called with two values: def fold(state, event)"
    for node in ast.walk(fold):
        if isinstance(node, ast.Yield | ast.YieldFrom):
            yield f"line {node.lineno}: fold yields; return (state, rows) instead: rows is a list"


def _impurities(tree: ast.Module) -> Iterator[str]:
    top = _top_names(tree)
    for statement in tree.body:
        if not _is_constant_statement(statement):
            yield (
                f"line {statement.lineno}: at the top level only imports, functions, classes and constants are allowed, because what is "
                "kept there outlives an event; move it into fold, or write a constant"
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                _module(node.lineno, alias.name) for alias in node.names if alias.name.partition(".")[0] not in MODULES
            )
        elif isinstance(node, ast.ImportFrom):
            if node.level or (node.module or "").partition(".")[0] not in MODULES:
                yield _module(node.lineno, "." * node.level + (node.module or ""))
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield f"line {node.lineno}: {ast.unparse(node)} keeps something between events; keep it in the state"
        elif isinstance(node, ast.Name) and node.id in _BUILTINS:
            yield f"line {node.lineno}: {node.id} reaches beyond state and event; remove it"
        elif isinstance(node, ast.Attribute) and node.attr in _CLOCK:
            yield f"line {node.lineno}: .{node.attr} reads the clock or its zone; use a time of the event"
        elif isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            yield f"line {node.lineno}: .{node.attr} reaches beyond state and event; remove it"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _function_findings(node, top)


def _module(line: int, name: str) -> str:
    return (
        f"line {line}: imports {name}, which may give another result in another run; use state and event, and of Python's "
        f"library {', '.join(sorted(MODULES - {'__future__'}))}"
    )


def _top_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def _is_constant_statement(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return node.value is None or _is_constant(node.value)
    return False


def _is_constant(node: ast.expr) -> bool:
    for child in ast.walk(node):
        if isinstance(child, ast.Call):
            name = child.func.attr if isinstance(child.func, ast.Attribute) else getattr(child.func, "id", "")
            if name not in _CONSTANT_CALLS:
                return False
        elif isinstance(child, ast.Lambda | ast.GeneratorExp | ast.NamedExpr | ast.Await):
            return False
    return True


def _function_findings(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, top: set[str]) -> Iterator[str]:
    defaults = [*node.args.defaults, *(default for default in node.args.kw_defaults if default is not None)]
    if any(
        not isinstance(default, ast.Constant | ast.Tuple | ast.Name | ast.UnaryOp | ast.Attribute)
        for default in defaults
    ):
        yield f"line {node.lineno}: a default that can change lives between events; use None or a constant"
    local_names = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
    local_names |= {
        child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)
    }
    outer_names = top - local_names
    for inner in ast.walk(node):
        target = None
        if isinstance(inner, ast.Subscript | ast.Attribute) and isinstance(inner.ctx, ast.Store | ast.Del):
            target = inner.value
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _MUTATORS:
            target = inner.func.value
        root = _root(target)
        if root in outer_names:
            yield f"line {getattr(inner, 'lineno', 0)}: changes {root}, which outlives an event; keep it in the state"


def _root(node: ast.expr | None) -> str | None:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
