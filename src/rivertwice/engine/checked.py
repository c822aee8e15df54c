"""The verdict of the checks on a definition, stored with the pipeline's state: the same definition is checked once.

`HOME/pipelines/NAME/checked.json` names what was checked (the bundle's id, so every byte of the definition), by which checks and
which Spark, and what they found; and how the definition's cases ran last. A start, an upgrade, `lint` and `up` read it. It is written
again if one of the three differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivertwice.core import (
    ConfigError,
    DefinitionError,
    PipelineHome,
    RequestError,
    Settings,
    absence_of,
    parse_iso,
    to_iso,
)
from rivertwice.definition import Bundle, CheckReport, Judgement, build_bundle
from rivertwice.storage import read_json, replace_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = 1
CHECKS_VERSION = 4
"""Increase it when a change alters what the checks refuse, or tell."""


def read_verdict(home: PipelineHome, bundle: str) -> CheckReport | None:
    """Return the stored verdict on a bundle; None if these checks, with this version of Spark, have not judged it.

    A record that cannot be read counts as missing: it is written again.
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
            bundle,
            tuple(value["findings"]),
            tuple(value["unchecked"]),
            dict(value["keys"]),
            parse_iso(value["at"]),
            tuple(value["risks"]),
            {column: tuple(map(tuple, sources)) for column, sources in value["columns"].items()},
        ).with_cases(value.get("cases"))
    except (ValueError, KeyError, TypeError, RequestError, PackageNotFoundError):
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
        home: where the verdict is stored; None: it is not stored.
        spark: gives the session to check in; not called if a verdict is stored.
        where: the folder of the definition's files, as findings name it.
        again: check it even if a verdict is stored.
    """
    stored = None if again or home is None else read_verdict(home, bundle.id)
    if stored is not None:
        return stored
    from rivertwice.engine.checks import examine_definition

    examined = examine_definition(spark(), bundle.definition, where)
    verdict = CheckReport(
        bundle.id,
        tuple(examined.findings),
        tuple(examined.unchecked),
        examined.keys,
        now,
        tuple(examined.risks),
        {column: tuple(sources) for column, sources in examined.columns.items()},
    )
    if home is not None:
        _write(home, verdict)
    return verdict


def judge_folder(
    settings: Settings,
    folder: Path,
    spark: Callable[[], SparkSession] | None,
    now: datetime,
    *,
    again: bool = False,
) -> Judgement:
    """Load and check the definition in a folder. Errors are returned, so that other definitions are judged too.

    Verdicts on the project's pipelines are stored in their homes. Verdicts on examples, which are never started, are not stored.

    Args:
        spark: gives the session to check in; None: only a stored verdict is taken.
        again: check it even if a verdict is stored.
    """
    name, home = folder.name, None
    try:
        bundle = build_bundle(folder)
        home = settings.pipeline(name) if folder.parent == settings.definitions else None
    except (DefinitionError, ConfigError) as error:
        return Judgement(name, None, None, (str(error),), ())
    if spark is None:
        stored = None if home is None else read_verdict(home, bundle.id)
        if stored is None:
            absence = absence_of("pyspark")
            reason = f"Spark has not looked at it; {f'{absence}, then ' if absence else ''}`rivertwice lint {name}` checks it"
            return Judgement(name, bundle, None, (), (reason,))
        return Judgement(name, bundle, stored, stored.findings, stored.unchecked)
    try:
        verdict = check_bundle(home, bundle, spark, now, where=str(folder), again=again)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        reason = f"the check itself failed ({type(error).__name__}: {first[:300]}); run `rivertwice doctor`, then `rivertwice lint {name}`"
        return Judgement(name, bundle, None, (), (reason,))
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
        "risks": list(verdict.risks),
        "columns": dict(verdict.columns),
        "at": to_iso(verdict.at),
    }
    home.root.mkdir(parents=True, exist_ok=True)
    before = read_json(home.checked) or {}
    cases = before.get("cases") if before.get("bundle") == bundle else None
    replace_json(home.checked, value if cases is None else {**value, "cases": cases})


def note_cases(home: PipelineHome, failed: Mapping[str, bool], now: datetime) -> None:
    """Store with the verdict on a definition how its cases ran: case to whether it failed. Without a verdict nothing is stored."""
    value = read_json(home.checked)
    if value is None or not failed:
        return
    names = [case for case, is_failed in failed.items() if is_failed]
    passed_at = (value.get("cases") or {}).get("passed_at") if names else to_iso(now)
    cases = {"at": to_iso(now), "count": len(failed), "failed": names, "passed_at": passed_at}
    replace_json(home.checked, {**value, "cases": cases})
