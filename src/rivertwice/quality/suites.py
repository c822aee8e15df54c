"""Suites in `expectations/PIPELINE/` of a project: which there are, what is wrong with one, and reading it.

A suite is what `ExpectationSuite.to_json_dict()` of Great Expectations writes. It is checked against the columns of the
definition's rows before it judges anything: one that checks less than it says must never look like one that passed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rivertwice.core import PipelineHome, RequestError, Settings, SuiteError, absence_of, base_of, did_you_mean, meant
from rivertwice.definition import Definition, LintFinding, LintLevel
from rivertwice.quality.model import CRITICAL, SEVERITIES, SUBJECTS, expectation_id
from rivertwice.storage import read_json, replace_json

# Which expectations Great Expectations accepted, kept so that an unchanged suite is checked without importing it (2 CPU-seconds).
#
# `HOME/pipelines/NAME/accepted.json` names each expectation of the pipeline's suites by its type and arguments, and the version that
# accepted them. Only what was accepted is kept: whatever is new, changed or wrong is asked again, and named in the library's words.

LOG = logging.getLogger(__name__)
FORMAT = 1


def question_of(kind: str, kwargs: Mapping[str, Any]) -> str:
    """Return what names an expectation's type and arguments: their SHA-256. Pure."""
    return hashlib.sha256(json.dumps([kind, kwargs], sort_keys=True).encode()).hexdigest()


def read_accepted(home: PipelineHome) -> frozenset[str]:
    """Return what this version of Great Expectations accepted; nothing if the record cannot be read: it is written again."""
    try:
        value = read_json(home.accepted)
        if value is None or value["format"] != FORMAT or value["great_expectations"] != version("great-expectations"):
            return frozenset()
        return frozenset(value["accepted"])
    except (OSError, ValueError, KeyError, TypeError, RequestError):
        return frozenset()


def write_accepted(home: PipelineHome, questions: Set[str]) -> None:
    """Keep what was accepted, in place of what is kept. A home that cannot be written keeps nothing, and each check asks."""
    value = {
        "format": FORMAT,
        "great_expectations": version("great-expectations"),
        "accepted": sorted(questions),
    }
    try:
        replace_json(home.accepted, value)
    except OSError as error:
        LOG.info("%s cannot be written, so the next check imports Great Expectations again: %s", home.accepted, error)


ROWS_IN_WINDOW = "_rows_in_window"
"""A column that every judged row has beside those of the definition: how many rows its window has."""
FOLDER = "expectations"
CHECK = "data quality"
FIRST_INEXACT = 2**53
"""The first whole number from which on a double does not hold every one."""
_COLUMN_ARGUMENTS = ("column", "column_A", "column_B")
_LIST_ARGUMENTS = ("column_list", "column_set")


@dataclass(frozen=True)
class Suite:
    """A suite as it is written.

    Attributes:
        path: below the project.
        subject: `windows` or `corrections`.
        sha256: of the file.
    """

    path: str
    subject: str
    sha256: str
    name: str
    expectations: tuple[Mapping[str, Any], ...]

    @property
    def ids(self) -> list[str]:
        """The expectations' ids, in order."""
        return [expectation_id(entry) for entry in self.expectations]


def find_suite(settings: Settings, pipeline: str, subject: str) -> Path | None:
    """Return the file of a pipeline's suite, or None. A version has its own, `expectations/NAME@v2/`, or else the pipeline's.

    Only the project's own folder counts: what rivertwice brings along knows nothing of a user's columns.
    """
    for name in dict.fromkeys((pipeline, base_of(pipeline))):
        path = settings.project / FOLDER / name / f"{subject}.json"
        if path.exists():
            return path
    return None


def read_suite(settings: Settings, pipeline: str, subject: str) -> Suite | None:
    """Return a pipeline's suite as it is written, or None if it has none. What is in it is not checked (`load_checked`).

    Raises:
        SuiteError: the file is not a suite.
    """
    path = find_suite(settings, pipeline, subject)
    if path is None:
        return None
    name = str(path.relative_to(settings.project))
    try:
        data = path.read_bytes()
        document = json.loads(data, parse_float=lambda text: _held(text, name))
    except (OSError, ValueError) as error:
        place = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        message = (
            f"{name} is not valid JSON{place} ({error}), so it would check nothing; correct the file, or remove it"
        )
        raise SuiteError(message) from error
    entries = document.get("expectations") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries or not all(isinstance(each, dict) for each in entries):
        message = (
            f"{name} has no list `expectations` with at least one expectation, so it would check nothing; write the suite as "
            "Great Expectations does: ExpectationSuite.to_json_dict()"
        )
        raise SuiteError(message)
    title = str(document.get("name") or f"{pipeline} {subject}")
    return Suite(name, subject, hashlib.sha256(data).hexdigest(), title, tuple(entries))


def _held(text: str, file: str) -> float:
    """Return a number of a suite as Great Expectations gets it.

    Raises:
        SuiteError: a double does not hold its digits.
    """
    number = float(text)
    if math.isfinite(number) and Decimal(text) != Decimal(repr(number)):
        message = (
            f"{file} has the number {text}, of which a double holds {number!r}: Great Expectations compares doubles, so a wrong value "
            "could pass; write fewer digits, or compare in the SQL and expect the outcome of a column"
        )
        raise SuiteError(message)
    return number


def load_checked(settings: Settings, pipeline: str, definition: Definition, subject: str) -> Suite | None:
    """Return a pipeline's suite, or None if it has none.

    Raises:
        SuiteError: it is not a suite, or something in it is wrong; the message names all of it.
    """
    suite = read_suite(settings, pipeline, subject)
    problems = [] if suite is None else suite_problems(suite, columns_of(definition))
    if problems:
        raise SuiteError("\n".join(problems))
    return suite


def require_judges(settings: Settings, pipeline: str, subject: str) -> None:
    """Refuse a suite that needs Great Expectations where that is not installed, before anything is computed for it.

    Raises:
        SuiteError: so it is; the message has the line that installs it. A suite with a mistake is not refused here.
    """
    from rivertwice.quality.checks import find_need

    if not absence_of("great_expectations"):
        return
    try:
        suite = read_suite(settings, pipeline, subject)
    except SuiteError:
        return
    for entry in () if suite is None else suite.expectations:
        if (need := find_need(*_asked(entry))) and suite is not None:
            message = f"{suite.path}: {need}"
            raise SuiteError(message)


def columns_of(definition: Definition) -> list[str]:
    """Return the columns of the rows that a suite judges."""
    return [*definition.result_columns, ROWS_IN_WINDOW]


def suite_problems(suite: Suite, columns: Sequence[str], accepted: Collection[str] = ()) -> list[str]:
    """Return what is wrong in a suite, one sentence each with the remedy; empty if nothing is.

    Args:
        accepted: what Great Expectations need not be asked (`question_of`); it is imported for anything else.
    """
    problems: list[str] = []
    seen: dict[str, int] = {}
    for number, entry in enumerate(suite.expectations, 1):
        place = f"{suite.path}, expectation {number} of {len(suite.expectations)}"
        problems += [f"{place}: {what}" for what in _entry_problems(entry, columns, accepted)]
        first = seen.setdefault(
            json.dumps([entry.get("type"), entry.get("kwargs")], sort_keys=True, default=str), number
        )
        if first != number:
            problems.append(f"{place}: it is the same as expectation {first}, so one of them is lost; remove one")
    return problems


def _entry_problems(entry: Mapping[str, Any], columns: Sequence[str], accepted: Collection[str]) -> Iterator[str]:
    from rivertwice.quality.checks import find_need
    from rivertwice.quality.engine import SQL_ONLY, arguments_of, known_types

    unknown = sorted(
        set(entry) - {"type", "kwargs", "severity", "meta", "id", "description", "notes", "rendered_content"}
    )
    for name in unknown:
        yield f"`{name}` is not part of an expectation; {did_you_mean(name, ('type', 'kwargs', 'severity', 'meta'))}"
    severity = entry.get("severity", CRITICAL)
    if severity not in SEVERITIES:
        yield f"severity {severity!r} is unknown{meant(str(severity), SEVERITIES)}; write critical, warning or info"
    kind, kwargs = _asked(entry)
    if kind in SQL_ONLY:
        yield f"{kind} asks an SQL database, and there is none here; write it as expectations of columns"
        return
    if absence_of("great_expectations"):
        need = find_need(kind, kwargs)
        if need:
            yield need
            return
    elif not isinstance(kwargs, dict) or question_of(kind, kwargs) not in accepted:
        known = known_types()
        if kind not in known:
            yield f"there is no expectation {kind!r}, so it would check nothing; {did_you_mean(kind, known)}"
            return
        if not isinstance(kwargs, dict):
            yield f"kwargs is {kwargs!r}; write an object with the arguments of {kind}: {', '.join(arguments_of(kind))}"
            return
        yield from _refusals(kind, kwargs)
    yield from _kwargs_problems(kwargs, columns)


def _asked(entry: Mapping[str, Any]) -> tuple[str, Any]:
    return str(entry.get("type")), entry.get("kwargs", {})


def _refusals(kind: str, kwargs: Mapping[str, Any]) -> Iterator[str]:
    from rivertwice.quality.engine import arguments_of, find_mistakes

    for argument, why in find_mistakes(kind, kwargs):
        if argument in kwargs and why.startswith("extra fields"):
            yield f"{kind} has no argument `{argument}`; {did_you_mean(argument, arguments_of(kind))}"
        else:
            yield f"{kind}{f', `{argument}`' if argument else ''}: {why}; its arguments are {', '.join(arguments_of(kind))}"


def _kwargs_problems(kwargs: Mapping[str, Any], columns: Sequence[str]) -> Iterator[str]:
    condition = kwargs.get("row_condition")
    if isinstance(condition, str):
        yield (
            "row_condition is a text, which only one engine understands; write the condition as Great Expectations does with "
            'condition_parser "great_expectations": Column("NAME") == VALUE, as to_json_dict() gives it'
        )
    for argument, number in _numbers_in(kwargs):
        if not math.isfinite(number):
            yield f"`{argument}` has {number}, with which nothing can be compared; write a number, or leave the argument out"
        elif abs(number) >= FIRST_INEXACT:
            yield (
                f"`{argument}` has {number}: Great Expectations compares doubles, which do not hold every whole number from "
                f"{FIRST_INEXACT} on, so a wrong value could pass; write a smaller number, or compare in the SQL and expect the outcome "
                "of a column"
            )
    for name in dict.fromkeys(columns_in(kwargs)):
        if name not in columns:
            yield f"the rows have no column {name!r}; {did_you_mean(name, columns)}"
    if "$PARAMETER" in json.dumps(kwargs, default=str):
        yield "a $PARAMETER has no value here; write the value itself"


def _numbers_in(value: Any, argument: str = "") -> Iterator[tuple[str, int | float]]:
    """Yield the numbers of arguments, each with the argument that has it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield argument, value
    nested = (
        value.items()
        if isinstance(value, dict)
        else ((argument, each) for each in value)
        if isinstance(value, list)
        else ()
    )
    for name, each in nested:
        yield from _numbers_in(each, argument or str(name))


def columns_in(kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the columns that the arguments of an expectation name."""
    yield from (kwargs[name] for name in _COLUMN_ARGUMENTS if isinstance(kwargs.get(name), str))
    for name in _LIST_ARGUMENTS:
        listed = kwargs.get(name)
        yield from (each for each in listed if isinstance(each, str)) if isinstance(listed, list) else ()
    yield from _columns_of_condition(kwargs.get("row_condition"))


def _columns_of_condition(condition: Any) -> Iterator[str]:
    if isinstance(condition, list):
        for each in condition:
            yield from _columns_of_condition(each)
    if isinstance(condition, dict):
        column = condition.get("column")
        if isinstance(column, dict) and isinstance(column.get("name"), str):
            yield column["name"]
        for name, each in condition.items():
            if name != "column":
                yield from _columns_of_condition(each)


def suite_mistakes(settings: Settings, definition: Definition, home: PipelineHome | None = None) -> list[str]:
    """Return all that is wrong with a pipeline's suites, one sentence each; empty if it has none.

    Great Expectations is asked about what it has not accepted yet; suites without a mistake are accepted, and that is kept. Where it is
    not installed, an expectation that needs it is a mistake.

    Args:
        home: where it is kept; None: in the pipeline's own. A version that has not begun has none.
    """
    name, home = definition.name, home or settings.pipeline(definition.name)
    mistakes = list(_stray_files(settings.project / FOLDER / name))
    is_asked = not absence_of("great_expectations")
    accepted: frozenset[str] = read_accepted(home) if is_asked else frozenset()
    questions: set[str] = set()
    for subject in SUBJECTS:
        try:
            suite = read_suite(settings, name, subject)
            if suite is not None:
                mistakes += suite_problems(suite, columns_of(definition), accepted)
                if is_asked:
                    questions |= {question_of(*_asked(entry)) for entry in suite.expectations}
        except SuiteError as error:
            mistakes.append(str(error))
    if not mistakes and questions - accepted:
        write_accepted(home, questions)
    return mistakes


def lint_suites(settings: Settings, definition: Definition) -> list[LintFinding]:
    """Return the findings about a pipeline's suites; none if it has no folder in `expectations/`."""
    name = definition.name
    strays = list(_stray_folders(settings, settings.project / FOLDER, name))
    remedy = f"run `rivertwice lint {name}` again after correcting it"
    mistakes = [
        LintFinding(CHECK, LintLevel.BROKEN, mistake, remedy) for mistake in suite_mistakes(settings, definition)
    ]
    if mistakes:
        return [*mistakes, *strays]
    suites = [suite for subject in SUBJECTS if (suite := read_suite(settings, name, subject)) is not None]
    return [*(LintFinding(CHECK, LintLevel.HOLDS, _counted(suite)) for suite in suites), *strays]


def _counted(suite: Suite) -> str:
    by = [sum(each.get("severity", CRITICAL) == level for each in suite.expectations) for level in SEVERITIES]
    counts = ", ".join(f"{count} {level}" for count, level in zip(by, SEVERITIES, strict=True) if count)
    return f"{suite.path}: {counts} expectations, each with its columns"


def _stray_files(folder: Path) -> Iterator[str]:
    known = [f"{subject}.json" for subject in SUBJECTS]
    for path in sorted(folder.glob("*.json")):
        if path.name not in known:
            yield f"{FOLDER}/{folder.name}/{path.name} is run by nothing; {did_you_mean(path.name, known)}"


def _stray_folders(settings: Settings, root: Path, name: str) -> Iterator[LintFinding]:
    """Yield folders of suites that belong to no pipeline, and probably to this one."""
    names = settings.pipeline_names()
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        is_known = base_of(path.name) in names or path.name.startswith(".")
        if path.is_dir() and not is_known and meant(path.name, names) == meant(name, [name]):
            text = f"{FOLDER}/{path.name} belongs to no pipeline, so its suites check nothing; did you mean {FOLDER}/{name}?"
            yield LintFinding(CHECK, LintLevel.WARNS, text, f"rename the folder to {name}")
