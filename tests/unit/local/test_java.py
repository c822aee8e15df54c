from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rivertwice.core.errors import ConfigError, ServiceError
from rivertwice.core.settings import Settings
from rivertwice.engine.java import candidate_homes, java_env, parse_version, select_java, write_wrapper


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21.0.8" 2025-07-15 LTS', 21),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_the_version_is_read_from_what_java_says(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_the_first_supported_java_is_taken() -> None:
    versions = {Path("/11"): 11, Path("/21"): 21, Path("/17"): 17}
    java = select_java([Path("/none"), Path("/11"), Path("/21"), Path("/17")], versions.get)
    assert java is not None
    assert (java.home, java.version) == (Path("/21"), 21)
    assert select_java([Path("/11")], versions.get) is None


def test_java_home_comes_before_path_and_the_wrapper_last(tmp_path: Path) -> None:
    binary = tmp_path / "jdk" / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    env = {"JAVA_HOME": "/home-jdk", "PATH": str(binary.parent)}
    homes = candidate_homes(env, Path("/build/java"))
    assert homes == [Path("/home-jdk"), tmp_path / "jdk", Path("/build/java")]


def test_the_wrapper_drops_only_the_module_the_trimmed_java_has_not(tmp_path: Path) -> None:
    fake = tmp_path / "it's java"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    home = write_wrapper(tmp_path, fake)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "", "Main"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["-Xmx1g", "-cp", "a b", "", "Main"]


def test_a_machine_without_java_is_told_what_to_do(tmp_path: Path) -> None:
    settings = Settings(project=tmp_path, home=tmp_path)
    with pytest.raises(ConfigError, match=r"no Java 17 or 21.*rivertwice setup"):
        java_env(settings, {"PATH": str(tmp_path)})


def test_a_java_that_does_not_run_now_is_not_called_absent(tmp_path: Path) -> None:
    binary = tmp_path / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\necho 'Could not reserve enough space for object heap' >&2; exit 1\n")
    binary.chmod(0o755)
    settings = Settings(project=tmp_path, home=tmp_path)
    with pytest.raises(ServiceError, match=rf"does not run.*{tmp_path}: exit 1, 'Could not reserve"):
        java_env(settings, {"JAVA_HOME": str(tmp_path), "PATH": "/nowhere"})


def test_java_home_is_put_first_on_the_path(settings: Settings) -> None:
    env = java_env(settings)
    assert env["PATH"].split(os.pathsep)[0] == f"{env['JAVA_HOME']}/bin"
