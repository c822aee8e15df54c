"""What must hold of the project's own files."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

import pytest
import yaml

from homes.project import REPOSITORY

GIVEN = ("pyspark", "apache-airflow", "apache-airflow-providers-apache-spark", "great-expectations", "boto3")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
    return document


def test_the_two_packages_that_own_the_same_files_have_the_same_version() -> None:
    assert version("pyspark") == version("pyspark-client") == "4.2.0"


def test_the_user_s_packages_are_pinned_and_locked_with_hashes() -> None:
    direct = (REPOSITORY / "requirements.txt").read_text()
    lock = (REPOSITORY / "requirements.lock").read_text()
    for name in GIVEN:
        pin = re.search(rf"^{re.escape(name)}==(\S+)", direct, re.MULTILINE)
        assert pin, name
        assert re.search(rf"^{re.escape(name)}=={re.escape(pin[1])} \\\n +--hash=sha256:", lock, re.MULTILINE), name


PINS = sorted(path.stem for path in REPOSITORY.glob("requirements*.txt"))
PACKAGE = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[a-z0-9,-]+\])?==(?P<version>[^\s;\\]+)")
ASKED_FOR = re.compile(r"^    # via(?: -r |\n(?:    #   .*\n)*?    #   -r )requirements", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    """Return the direct pins of a file and of those that it includes; a line that pins no exact version fails."""
    found: dict[str, str] = {}
    for line in (REPOSITORY / f"{name}.txt").read_text().splitlines():
        plain = line.partition("#")[0].strip()
        if plain.startswith("-r "):
            found |= pins(plain.removeprefix("-r ").removesuffix(".txt"))
        elif plain:
            pin = PACKAGE.match(plain)
            assert pin, f"{name}.txt: {line}"
            found[pin["name"].lower()] = pin["version"]
    return found


def locked(name: str) -> dict[str, tuple[str, bool]]:
    """Return what a lock holds: each package with its version, and whether a file of pins asks for it."""
    text = (REPOSITORY / f"{name}.lock").read_text()
    starts = list(re.finditer(PACKAGE.pattern, text, re.MULTILINE))
    ends = [*(match.start() for match in starts[1:]), len(text)]
    parts = [(match, text[match.start() : end]) for match, end in zip(starts, ends, strict=True)]
    assert all("--hash=sha256:" in part for _, part in parts)
    return {match["name"]: (match["version"], bool(ASKED_FOR.search(part))) for match, part in parts}


@pytest.mark.parametrize("name", PINS)
def test_a_lock_has_every_pin_and_asks_for_nothing_else(name: str) -> None:
    assert {package: version for package, (version, asked) in locked(name).items() if asked} == pins(name)


def test_the_lock_of_users_and_the_lock_of_developers_agree() -> None:
    users, developers = locked("requirements"), locked("requirements-dev")
    assert [package for package in users if users[package][0] != developers[package][0]] == []


def test_the_compose_file_has_every_service(compose: dict[str, Any]) -> None:
    wanted = {"kafka", "s3", "s3-init", "postgres", "spark-master", "spark-worker", "topics-init", "agent"}
    airflow = {"airflow-init", "airflow-api", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"}
    assert set(compose["services"]) == wanted | airflow | {"prometheus", "grafana"}
    for name, service in compose["services"].items():
        assert {"image", "build"} & set(service), name
        for other in service.get("depends_on", []):
            assert other in compose["services"], (name, other)
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (source.startswith("./") and (REPOSITORY / source).exists()), (
                name,
                volume,
            )


def test_the_compose_file_publishes_on_loopback_and_defaults_no_secret(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    text = (REPOSITORY / "docker-compose.yml").read_text()
    for name in ("POSTGRES_PASSWORD", "AIRFLOW_FERNET_KEY", "AIRFLOW_JWT_SECRET", "S3_ACCESS_KEY", "S3_SECRET_KEY"):
        uses = re.findall(rf"\$\{{{name}[^}}]*\}}", text)
        assert uses, name
        assert all(use.startswith(f"${{{name}:?") for use in uses), name


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    for page in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]:
        text = re.sub(
            r"<!-- site: .*? -->", "", page.read_text(), flags=re.DOTALL
        )  # only the site has them: tests/unit/test_site.py
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_plugins_folder_holds_one_uniquely_named_line() -> None:
    files = list((REPOSITORY / "plugins").rglob("*.py"))
    assert [path.name for path in files] == ["rivertwice_plugin.py"]


def test_no_path_of_a_machine_and_no_registry_is_in_the_repository() -> None:
    hosts = ["repo1" + ".maven", "pypi" + ".org", "proxy" + ".golang"]
    places = ["/" + "root/", "/" + "work/"]
    for folder in ("src", "dags", "plugins", "spark_jobs", "scripts", "docs", "pipelines", "lab", "docker"):
        for path in (REPOSITORY / folder).rglob("*"):
            if path.suffix in {".py", ".md", ".yaml", ".sql", ".toml", ".json"}:
                text = path.read_text()
                assert not [mark for mark in hosts + places if mark in text], path
