"""`rivertwice admin schema ...`: what each verb says, as text and as JSON, and what it leaves alone."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from homes.orders import ORDERS, REGISTERED
from homes.project import make_project
from rivertwice.cli.main import cli
from rivertwice.definition.schema_folder import FolderRegistry


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = make_project(tmp_path, {ORDERS.name: ORDERS}).project
    shutil.copytree(REGISTERED, project / "schemas")
    return project


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("RIVERTWICE_SCHEMA_REGISTRY", raising=False)

    def invoke(*arguments: str, output: str = "json") -> Result:
        options = ["--output", output, "--project", str(project), "--home", str(project / "home")]
        return CliRunner().invoke(cli, [*options, "admin", "schema", *arguments])

    return invoke


def fourth(folder: Path, **changes: Any) -> Path:
    value = json.loads((REGISTERED / "orders-value" / "3.avsc").read_text())
    value["fields"][2] |= changes
    value["fields"].append({"name": "gift", "type": "boolean", "default": False})
    path = folder / "next.avsc"
    path.write_text(json.dumps(value))
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_list_and_show_tell_versions_ids_and_fields(run: Any) -> None:
    listed = json.loads(run("list").stdout)
    assert [(item["subject"], item["version"], item["id"], item["rule"]) for item in listed] == [
        ("orders-value", number, number, "full") for number in (1, 2, 3)
    ]
    newest = json.loads(run("show", "orders-value").stdout)
    assert (newest["version"], [field["name"] for field in newest["schema"]["fields"]][-1]) == (3, "currency")
    assert json.loads(run("show", "--id", "1").stdout)["schema"]["doc"] == "An order."
    assert "orders-value" in run("list", output="text").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("show", "orders-value", "--id", "1"),
        ("show", "orders-value", "--version", "9"),
        ("show", "--id", "9"),
    ],
)
def test_a_schema_that_is_not_there_or_asked_for_twice_is_refused(run: Any, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert json.loads(result.stderr)["error"]["reason"] == "request"


def test_check_judges_and_registers_nothing(run: Any, project: Path, tmp_path: Path) -> None:
    before = tree(project)
    assert run("check", "orders-value", str(fourth(tmp_path))).exit_code == 0
    refused = run("check", "orders-value", str(fourth(tmp_path, type="string")))
    assert refused.exit_code == 3
    assert "meaning changed at /amount" in json.loads(refused.stdout)["findings"][0]
    assert run("check", "orders-value", str(fourth(tmp_path, type="string")), "--rule", "none").exit_code == 0
    assert tree(project) == before


def test_a_registered_version_is_pinned_by_a_refresh_and_by_nothing_else(
    run: Any, project: Path, tmp_path: Path
) -> None:
    pinned = project / "pipelines" / ORDERS.name / "schemas"
    assert json.loads(run("register", "orders-value", str(fourth(tmp_path))).stdout)["id"] == 4
    before = tree(pinned)
    dry = run("refresh", ORDERS.name, "--dry-run")
    assert (dry.exit_code, json.loads(dry.stdout)["new"], tree(pinned)) == (0, [4], before)
    done = json.loads(run("refresh", ORDERS.name).stdout)
    assert (done["written"], set(tree(pinned)) - set(before)) == (True, {"orders-4.avsc"})
    assert run("refresh", ORDERS.name, output="text").stdout.strip() == "orders-value: 4 ids pinned, 0 new"


@pytest.mark.proves("howto-schemas.md#a-new-version-while-a-stream-runs")
def test_a_version_that_could_not_be_decoded_is_named_and_not_pinned(run: Any, project: Path, tmp_path: Path) -> None:
    pinned = project / "pipelines" / ORDERS.name / "schemas"
    assert run("register", "orders-value", str(fourth(tmp_path, type="string"))).exit_code == 1
    assert run("register", "orders-value", str(fourth(tmp_path, type="string")), "--rule", "none").exit_code == 0
    before = tree(pinned)
    result = run("refresh", ORDERS.name, output="text")
    assert result.exit_code == 3
    assert "version 4 (id 4) is not pinned, its records are dead letters" in result.stdout
    assert tree(pinned) == before


def test_the_reader_changes_only_when_told(run: Any, project: Path) -> None:
    reader = project / "pipelines" / ORDERS.name / "schemas" / "orders.avsc"
    before = reader.read_text()
    assert run("refresh", ORDERS.name).exit_code == 0
    assert reader.read_text() == before
    refused = run("refresh", ORDERS.name, "--reader", "3")
    assert refused.exit_code == 1
    assert "has no field 'note'" in json.loads(refused.stderr)["error"]["message"]


def test_a_file_that_is_no_schema_is_refused_in_words(run: Any, tmp_path: Path) -> None:
    for name, data in (("x.txt", b"{}"), ("x.avsc", b"\xff\xfe"), ("y.avsc", b"[1]")):
        (tmp_path / name).write_bytes(data)
        result = run("register", "orders-value", str(tmp_path / name))
        assert result.exit_code == 1, name
        assert name in result.stderr or "orders-value" in result.stderr


def test_a_registry_without_schemas_says_so(run: Any, project: Path) -> None:
    shutil.rmtree(project / "schemas")
    assert "no versions in" in run("list", output="text").stdout
    assert "has no version" in run("refresh", ORDERS.name).stderr


@pytest.mark.proves("failure-modes.md#schemas")
def test_registrations_at_the_same_time_get_versions_of_their_own(run: Any, project: Path, tmp_path: Path) -> None:
    count, files = 8, []
    for number in range(count):
        value = json.loads((REGISTERED / "orders-value" / "3.avsc").read_text())
        value["fields"].append({"name": f"gift_{number}", "type": "boolean", "default": False})
        files.append(tmp_path / f"{number}.avsc")
        files[-1].write_text(json.dumps(value))
    gate = threading.Barrier(count)

    def register(file: Path) -> int:
        gate.wait()
        registry = FolderRegistry(project / "schemas")
        return registry.register("orders-value", "avro", file.read_text(), "none").version

    with ThreadPoolExecutor(count) as pool:
        made = sorted(pool.map(register, files))
    assert made == list(range(4, 4 + count))
    listed = json.loads(run("list", "orders-value").stdout)
    assert [(one["version"], one["id"]) for one in listed] == [(number, number) for number in range(1, 4 + count)]
    shown = {run("show", "orders-value", "--version", str(number)).stdout for number in made}
    assert len(shown) == count
