"""doctor: what this machine lacks, and the exact remedy for each problem."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from rivertwice.cli.frame import REFUSED, Frame, as_table, example, pass_frame
from rivertwice.core import RivertwiceError, Settings, SparkVersion, absence_of

FREE_BYTES = 4_000_000_000
FREE_INODES = 50_000


@dataclass(frozen=True)
class DoctorCheck:
    """One thing that was looked at.

    Attributes:
        remedy: what to do, empty if nothing.
    """

    name: str
    ok: bool
    found: str
    remedy: str = ""


def check_java(settings: Settings) -> DoctorCheck:
    """Is there a Java that the broker and Spark run on?"""
    from rivertwice.engine import find_java

    java = find_java(settings.build)
    if java is None:
        return DoctorCheck(
            "java", False, "no Java 17 or 21", "run `rivertwice setup`, or set JAVA_HOME to a Java 17 or 21"
        )
    return DoctorCheck("java", True, f"{java.version} in {java.home}")


def check_packages(settings: Settings) -> DoctorCheck:
    """Has every package that is needed a version that fits? In a clone the one that is pinned, else one of the accepted range."""
    from rivertwice.local import direct_pins, select_mismatched, select_unfit

    installed = installed_packages()
    if settings.is_clone:
        pins = direct_pins((settings.project / "requirements.txt").read_text())
        wrong, said = select_mismatched(pins, installed), f"{len(pins)} pinned packages"
        remedy = "run `rivertwice setup`, and use the .venv it makes"
    else:
        wanted = importlib.metadata.requires("rivertwice") or []
        wrong, said = select_unfit(wanted, installed), "each in a version that fits"
        remedy = "run `uv pip install --upgrade 'rivertwice[airflow,s3]'`, with the extras that you use"
    if wrong:
        return DoctorCheck("packages", False, "; ".join(wrong), remedy)
    return DoctorCheck("packages", True, said)


def installed_packages() -> dict[str, str]:
    """Return the version of each package by its name; of two of one name the first on the path counts."""
    from rivertwice.local import normalized

    found = [(normalized(package.name), package.version) for package in importlib.metadata.distributions()]
    return dict(reversed(found))


def check_spark(settings: Settings) -> DoctorCheck:
    """Which Spark is installed, and what does its version lack?"""
    del settings
    if absence := absence_of("pyspark"):
        return DoctorCheck("spark", True, absence)
    spark, client = SparkVersion.installed(), installed_packages().get("pyspark-client")
    if spark.unsupported:
        return DoctorCheck("spark", False, spark.unsupported, f"{SparkVersion.REMEDY}, then `rivertwice setup`")
    if client not in (None, spark.text):
        problem = f"pyspark is {spark.text} and pyspark-client, which has the same files, is {client}"
        pins = f"'pyspark=={spark.text}' 'pyspark-client=={spark.text}'"
        return DoctorCheck("spark", False, problem, f"run `uv pip install --reinstall {pins}`")
    return DoctorCheck("spark", True, "; ".join([f"Spark {spark.text}", *spark.lacks]))


def check_jars(name: str, lock: str, folder: Callable[[Settings], Path]) -> Callable[[Settings], DoctorCheck]:
    """Return a check that the folder has every locked jar with its hash, and no other jar."""

    def check(settings: Settings) -> DoctorCheck:
        from rivertwice.local import compare_jars

        jars, wrong, strangers = compare_jars(settings, lock, folder(settings))
        if wrong or strangers:
            problem = f"{wrong} of {jars} missing or damaged, {strangers} not in the lock"
            return DoctorCheck(
                name, False, problem, "run `rivertwice setup`; it fetches what is missing and checks the hashes"
            )
        return DoctorCheck(name, True, f"{jars} jars, hashes as locked")

    return check


def check_definitions(settings: Settings) -> DoctorCheck:
    """Can every definition be accepted?"""
    from rivertwice.definition import load_each

    accepted, broken = load_each(settings.definitions)
    if broken:
        holds = f"; these can be: {', '.join(accepted)}" if accepted else ""
        problems = "; ".join(f"{name}: {error}" for name, error in broken.items())
        remedy = "correct what the message names; the others run meanwhile"
        return DoctorCheck("pipelines", False, f"cannot be accepted: {problems}{holds}", remedy)
    if not accepted:
        remedy = "write one with `rivertwice init`; or run in the project, or give --project"
        return DoctorCheck("pipelines", False, f"none in {settings.definitions}", remedy)
    return DoctorCheck("pipelines", True, ", ".join(accepted))


def check_home(settings: Settings) -> DoctorCheck:
    """Can the home be written, on a local disk with room?"""
    place = settings.home
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK):
        return DoctorCheck("home", False, f"{place} cannot be written", "give --home, or set RIVERTWICE_HOME")
    free, inodes = shutil.disk_usage(place).free, os.statvfs(place).f_favail
    space = f"{settings.home}: {free / 1e9:.1f} GB free"
    if free < FREE_BYTES or 0 < inodes < FREE_INODES:
        remedy = f"free space to at least {FREE_BYTES / 1e9:.0f} GB and {FREE_INODES} inodes, or move RIVERTWICE_HOME"
        return DoctorCheck("home", False, f"{space}, {inodes} inodes", remedy)
    return DoctorCheck("home", True, space)


def check_engine(settings: Settings) -> DoctorCheck:
    """Is there a warm engine, and what does it hold? Verbs start one when they need it."""
    from rivertwice.engine import engine_status

    engine = engine_status(settings)
    if engine is None:
        return DoctorCheck("engine", True, "none runs" if settings.engine else "off")
    work = "idle" if engine.running is None else f"runs `rivertwice {engine.running}`"
    return DoctorCheck("engine", True, f"process {engine.pid}, {engine.memory_bytes / 1e6:.0f} MB, {work}")


def check_remote(settings: Settings) -> DoctorCheck:
    """Does the Spark Connect server answer, and has it what batch verbs need?"""
    if settings.spark_remote is None:
        return DoctorCheck("spark connect", True, "not set")
    from rivertwice.engine import SparkOnDemand

    version, problems = SparkOnDemand(settings, "rivertwice-doctor", remote=True).examine_server()
    if problems:
        facts, remedies = zip(*problems, strict=True)
        return DoctorCheck("spark connect", False, f"{settings.spark_remote}: {'; '.join(facts)}", "; ".join(remedies))
    return DoctorCheck("spark connect", True, f"Spark {version} at {settings.spark_remote}")


def check_project(settings: Settings) -> DoctorCheck:
    """Is this a project, a folder with pipelines?"""
    project, clone = settings.project, " (a clone of rivertwice)" if settings.is_clone else ""
    if settings.definitions.is_dir():
        return DoctorCheck("project", True, f"{project}{clone}")
    remedy = f"run `rivertwice --project {project} init` to make one, or name yours with --project PATH or RIVERTWICE_PROJECT"
    return DoctorCheck("project", False, f"{project} has no folder pipelines, so it is not a project", remedy)


CHECKS: tuple[tuple[str, Callable[[Settings], DoctorCheck]], ...] = (
    ("project", check_project),
    ("java", check_java),
    ("packages", check_packages),
    ("spark", check_spark),
    ("broker jars", check_jars("broker jars", "kafka-broker.json", lambda settings: settings.broker_jars)),
    ("connector jars", check_jars("connector jars", "spark-kafka.json", lambda settings: settings.spark_jars)),
    ("pipelines", check_definitions),
    ("home", check_home),
    ("engine", check_engine),
    ("spark connect", check_remote),
)


def examine(settings: Settings) -> list[DoctorCheck]:
    """Run all checks; one that fails is a finding, so that the others are still made."""
    findings = []
    for name, check in CHECKS:
        try:
            findings.append(check(settings))
        except (RivertwiceError, OSError, ValueError) as error:
            findings.append(
                DoctorCheck(name, False, str(error), "correct what the message names, or run `rivertwice setup`")
            )
    return findings


@click.command(epilog=example("rivertwice doctor"))
@pass_frame
def doctor(frame: Frame) -> None:
    """Show what this machine lacks, with the exact remedy. Exit 1 if something is missing. Works offline."""
    findings = examine(frame.settings)
    rows = [("ok" if item.ok else "MISSING", item.name, item.found, item.remedy) for item in findings]
    frame.emit(findings, lambda: as_table(("", "what", "found", "remedy"), rows))
    if not all(item.ok for item in findings):
        raise SystemExit(REFUSED)
