"""The verdict of the checks on a definition, kept beside the pipeline's state: the same definition is checked once.

`HOME/pipelines/NAME/checked.json` names what was checked (the bundle's id, so every byte of the definition), by which checks and
which Spark, and what they found. A start, an upgrade, `lint` and `up` read it; it is written again when one of the three differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import ConfigError, DefinitionError, RequestError
from rivertwice.instants import parse_iso, to_iso
from rivertwice.pipeline.bundle import Bundle, build_bundle
from rivertwice.pipeline.lint_model import BROKEN, HOLDS, NOT_CHECKED
from rivertwice.store.files import read_json, replace_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = 1
CHECKS_VERSION = 1
"""Raised by whoever changes what the checks refuse."""


@dataclass(frozen=True)
class CheckReport:
    """What the checks found in a definition.

    Attributes:
        bundle: id of the definition's files.
        findings: why it is refused, one sentence each; empty if it holds.
        unchecked: what could not be checked, and why.
        keys: key to why it does not divide the work between tasks.
        at: when it was checked.
    """

    bundle: str
    findings: tuple[str, ...]
    unchecked: tuple[str, ...]
    keys: Mapping[str, str]
    at: datetime

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def require(self) -> None:
        """Refuse a definition that does not hold.

        Raises:
            DefinitionError: every finding with its remedy, one a line.
        """
        if self.findings:
            raise DefinitionError("\n".join(self.findings))


def read_verdict(home: PipelineHome, bundle: str) -> CheckReport | None:
    """Return the stored verdict on a bundle; None if these checks, with this Spark, have not judged it.

    A record that cannot be read counts as none: it is made again.
    """
    try:
        value = read_json(home.checked)
        if (
            value is None
            or value["format"] != FORMAT
            or [value[name] for name in ("bundle", "checks", "spark")] != _stamp(bundle)
        ):
            return None
        return CheckReport(
            bundle, tuple(value["findings"]), tuple(value["unchecked"]), dict(value["keys"]), parse_iso(value["at"])
        )
    except (ValueError, KeyError, TypeError, RequestError):
        return None


def check_bundle(
    home: PipelineHome | None,
    bundle: Bundle,
    spark: Callable[[], SparkSession],
    now: datetime,
    *,
    where: str,
    again: bool = False,
) -> CheckReport:
    """Return the verdict on a definition: the stored one, or a new one, which is stored.

    Args:
        home: where the verdict is kept; None: nowhere.
        bundle: the definition.
        spark: gives the session to check in; not called where a verdict is stored.
        now: the present instant.
        where: the folder of the definition's files, as findings name it.
        again: check it even if a verdict is stored.
    """
    known = None if again or home is None else read_verdict(home, bundle.id)
    if known is not None:
        return known
    from rivertwice.pipeline.checks import examine_definition

    found = examine_definition(spark(), bundle.definition, where)
    verdict = CheckReport(bundle.id, tuple(found.findings), tuple(found.unchecked), found.keys, now)
    if home is not None:
        _write(home, verdict)
    return verdict


@dataclass(frozen=True)
class Judgement:
    """One definition of a project, whatever is wrong with it.

    Attributes:
        name: of its folder.
        bundle: the definition; None if it cannot be loaded.
        verdict: what the checks say; None if it cannot be loaded or was not checked.
        broken: why it is refused, one sentence each.
        unchecked: why it was not checked, or what of it was not.
    """

    name: str
    bundle: Bundle | None
    verdict: CheckReport | None
    broken: tuple[str, ...]
    unchecked: tuple[str, ...]

    @property
    def state(self) -> str:
        """One of `holds`, `broken`, `not checked`."""
        if self.broken:
            return BROKEN
        return HOLDS if self.verdict is not None else NOT_CHECKED


def judge_folder(
    settings: Settings,
    folder: Path,
    spark: Callable[[], SparkSession] | None,
    now: datetime,
    *,
    again: bool = False,
) -> Judgement:
    """Load and check the definition in a folder; what is wrong with it is returned, so that others are judged too.

    Verdicts on the project's pipelines are kept in their homes; those on examples, which nothing starts, are not.

    Args:
        settings: where the project and its home lie.
        folder: of the definition.
        spark: gives the session to check in; None: only a stored verdict is taken.
        now: the present instant.
        again: check it even if a verdict is stored.
    """
    name, home = folder.name, None
    try:
        bundle = build_bundle(folder)
        home = settings.pipeline(name) if folder.parent == settings.definitions else None
    except (DefinitionError, ConfigError) as error:
        return Judgement(name, None, None, (str(error),), ())
    if spark is None:
        known = None if home is None else read_verdict(home, bundle.id)
        if known is None:
            told = f"Spark has not looked at it; `rivertwice lint {name}` checks it"
            return Judgement(name, bundle, None, (), (told,))
        return Judgement(name, bundle, known, known.findings, known.unchecked)
    try:
        verdict = check_bundle(home, bundle, spark, now, where=str(folder), again=again)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        told = f"the check itself failed ({type(error).__name__}: {first[:300]}); run `rivertwice doctor`, then `rivertwice lint {name}`"
        return Judgement(name, bundle, None, (), (told,))
    return Judgement(name, bundle, verdict, verdict.findings, verdict.unchecked)


def _stamp(bundle: str) -> list[Any]:
    return [bundle, CHECKS_VERSION, version("pyspark")]


def _write(home: PipelineHome, verdict: CheckReport) -> None:
    bundle, checks, spark = _stamp(verdict.bundle)
    value = {
        "format": FORMAT,
        "bundle": bundle,
        "checks": checks,
        "spark": spark,
        "findings": list(verdict.findings),
        "unchecked": list(verdict.unchecked),
        "keys": dict(verdict.keys),
        "at": to_iso(verdict.at),
    }
    home.root.mkdir(parents=True, exist_ok=True)
    replace_json(home.checked, value)
