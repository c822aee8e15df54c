"""`rivertwice setup`: what it does, in which order, and what each environment installs Java with."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from rivertwice.cli.main import cli
from rivertwice.core.errors import ServiceError
from rivertwice.core.settings import Settings
from rivertwice.engine.class_archive import run_step
from rivertwice.local import install


def asked(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """Return the steps that would be done."""
    for name in ("_ensure_java", "_ensure_jars", "train_archive"):
        monkeypatch.setattr(install, name, lambda *_: "there")
    result = CliRunner().invoke(cli, ["--output", "json", *words])
    assert result.exit_code == 0, result.output
    return [step["step"] for step in json.loads(result.stdout)["steps"]]


def test_each_option_adds_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = ["java", "broker jars", "connector jars"]
    assert asked(monkeypatch, "setup") == [*usual, "class archive"]
    assert asked(monkeypatch, "setup", "--dev") == [*usual, "Connect jars", "Iceberg jars", "class archive"]


def test_the_first_step_that_fails_ends_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        message = "no Java"
        raise ServiceError(message)

    monkeypatch.setattr(install, "_ensure_java", refuse)
    result = CliRunner().invoke(cli, ["setup"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "  java ...\nrivertwice: no Java\n"


def test_a_step_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_step("jars", lambda: "46 jars") == 0
    assert re.fullmatch(r"setup: jars            46 jars \(\d\.\d s\)\n", capsys.readouterr().out)


def test_the_image_asks_for_what_there_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for the lab with its example data, which nobody replays in a deployment."""
    dockerfile = (project / "docker" / "Dockerfile").read_text()
    found = re.search(r"&& rivertwice (setup.*?) *\\?\n", dockerfile)
    assert found
    assert asked(monkeypatch, *found[1].split())
    assert not re.search(r"\blab\b", dockerfile)


def test_java_is_installed_with_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(tmp_path, tmp_path / "home")
    monkeypatch.setattr(install, "find_spec", lambda _: SimpleNamespace())
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert install.installer(settings) == [sys.executable, "-m", "pip", "install"]
    monkeypatch.setattr("shutil.which", lambda _: "/bin/sh")
    assert install.installer(settings)[:3] == ["/bin/sh", "pip", "install"]
    own = settings.build / "tools" / "bin" / "uv"
    own.parent.mkdir(parents=True)
    own.touch()
    assert install.installer(settings)[0] == str(own)


def test_without_pip_and_uv_the_remedy_is_a_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(tmp_path, tmp_path / "home")
    monkeypatch.setattr(install, "find_spec", lambda _: None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ServiceError, match=r"neither pip nor uv .*install a Java 17 or 21, or set JAVA_HOME"):
        install.installer(settings)


def test_what_is_missing_is_seen_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Settings(project=tmp_path, home=tmp_path / "home")
    monkeypatch.setattr(install, "find_java", lambda _: "a Java")
    assert not install.is_set_up(settings)
    for lock, folder in ((install.CONNECTOR, settings.spark_jars), (install.BROKER, settings.broker_jars)):
        folder.mkdir(parents=True)
        assert not install.is_set_up(settings)
        for jar in install.load_lock(install.jar_lock(settings, lock)):
            (folder / jar.file_name).touch()
    assert install.is_set_up(settings)
    monkeypatch.setattr(install, "find_java", lambda _: None)
    assert not install.is_set_up(settings)


def test_a_home_whose_kafka_is_elsewhere_needs_no_jars_of_a_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = Settings(project=tmp_path, home=tmp_path / "home", bootstrap="broker:9092")
    monkeypatch.setattr(install, "find_java", lambda _: "a Java")
    settings.spark_jars.mkdir(parents=True)
    for jar in install.load_lock(install.jar_lock(settings, install.CONNECTOR)):
        (settings.spark_jars / jar.file_name).touch()
    assert install.is_set_up(settings)


def test_up_fetches_first_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> str:
        message = "no network"
        raise ServiceError(message)

    monkeypatch.setattr(install, "_ensure_java", refuse)
    environment = {"RIVERTWICE_PROJECT": str(tmp_path), "RIVERTWICE_DOWNLOADS": str(tmp_path / "none")}
    result = CliRunner().invoke(cli, ["up"], env=environment)
    assert (result.exit_code, result.stderr) == (1, "  java ...\nrivertwice: no network\n")
