from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from rivertwice.local.install import direct_pins, normalized, select_mismatched

USERS = {"pyspark", "apache-airflow", "apache-airflow-providers-apache-spark", "great-expectations", "boto3"}


@pytest.fixture(scope="module")
def bootstrap_script(project: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", project / "scripts" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pips_own_settings_reach_uv_unless_uv_has_its_own(bootstrap_script: ModuleType, tmp_path: Path) -> None:
    listed = (
        "global.index-url='https://mirror.example/simple'\n"
        ":env:.cert='/etc/ca.pem'\n"
        ":env:.default-timeout='180'\n"
        f":env:.find-links='{tmp_path}'\n"
    )
    env = bootstrap_script.uv_environment(listed, {"PATH": "/bin", "SSL_CERT_FILE": "/mine.pem"})
    assert env == {
        "PATH": "/bin",
        "UV_INDEX_URL": "https://mirror.example/simple",
        "SSL_CERT_FILE": "/mine.pem",
        "UV_FIND_LINKS": str(tmp_path),
    }


def test_without_settings_uv_gets_none(bootstrap_script: ModuleType) -> None:
    assert bootstrap_script.uv_environment("", {}) == {}
    assert bootstrap_script.uv_environment(":env:.find-links='/not/there'", {}) == {}


def test_another_lock_or_another_place_is_another_environment(
    bootstrap_script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bootstrap_script.fingerprint("requirements.lock")
    assert bootstrap_script.fingerprint("requirements.lock") == before
    assert bootstrap_script.fingerprint("requirements-dev.lock") != before
    (tmp_path / "lab").mkdir()
    for name in ("requirements.lock", "requirements-build.lock", "pyproject.toml", "lab/pyproject.toml"):
        (tmp_path / name).write_bytes((bootstrap_script.PROJECT / name).read_bytes())
    monkeypatch.setattr(bootstrap_script, "PROJECT", tmp_path)
    assert bootstrap_script.fingerprint("requirements.lock") != before


def test_every_direct_requirement_is_pinned_and_the_users_five_are_there(project: Path) -> None:
    for name in ("requirements.txt", "requirements-dev.txt"):
        lines = [line.partition("#")[0].strip() for line in (project / name).read_text().splitlines()]
        wanted = [line for line in lines if line and not line.startswith("-r")]
        assert all("==" in line for line in wanted)
    assert set(direct_pins((project / "requirements.txt").read_text())) >= USERS


def test_both_locks_agree_and_hold_every_pin(project: Path) -> None:
    runtime = direct_pins((project / "requirements.lock").read_text().replace(" \\", ""))
    dev = direct_pins((project / "requirements-dev.lock").read_text().replace(" \\", ""))
    assert runtime.items() <= dev.items()
    assert direct_pins((project / "requirements.txt").read_text()).items() <= runtime.items()
    assert direct_pins((project / "requirements-dev.txt").read_text()).items() <= dev.items()


def test_what_is_installed_is_pinned_and_both_pysparks_are_one_version(project: Path) -> None:
    pins = direct_pins((project / "requirements.txt").read_text())
    installed = {normalized(found.name): found.version for found in importlib.metadata.distributions()}
    assert select_mismatched(pins, installed) == []
    assert pins["pyspark"] == pins["pyspark-client"] == "4.2.0"


def test_a_package_that_moved_alone_is_named() -> None:
    pins = {"pyspark": "4.2.0", "pyspark-client": "4.2.0"}
    assert select_mismatched(pins, {"pyspark": "4.3.0"}) == [
        "pyspark is 4.3.0, not 4.2.0",
        "pyspark-client is not installed, not 4.2.0",
    ]
