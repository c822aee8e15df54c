"""`rivertwice demo` before anything starts: the folders that it takes, the settings that it uses, and what its last lines say."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from rivertwice.cli.demo import MARKER, DemoError, Teller, Verbs, demo_settings, ending, prepare_folder
from rivertwice.cli.main import cli
from rivertwice.core.errors import ConfigError, RequestError
from rivertwice.core.settings import Settings
from rivertwice.local.write import sample_files


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo changes the environment of its process; afterwards it is as it was."""
    for name in [name for name in os.environ if name.startswith("RIVERTWICE_")]:
        monkeypatch.delenv(name)
    for name in ("RIVERTWICE_PROJECT", "RIVERTWICE_DOWNLOADS"):
        monkeypatch.setenv(name, "replaced by the demo")


def write_sample(project: Path) -> None:
    for path, text in sample_files()[1].items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)


def test_an_absent_and_an_empty_folder_become_a_demos(tmp_path: Path) -> None:
    for project in (tmp_path / "new" / "folder", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        prepare_folder(project)
        assert [path.name for path in project.iterdir()] == [MARKER]
        prepare_folder(project)  # the demo was interrupted before it wrote anything


def test_a_folder_with_files_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds files that no demo made.*--dir"):
        prepare_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_earlier_demo_is_taken_unless_somebody_changed_it(tmp_path: Path) -> None:
    prepare_folder(tmp_path)
    write_sample(tmp_path)
    prepare_folder(tmp_path)
    sql = tmp_path / "pipelines" / "orders" / "transform.sql"
    sql.write_text(sql.read_text() + "-- mine\n")
    with pytest.raises(ConfigError, match=r"transform\.sql is not what the demo wrote"):
        prepare_folder(tmp_path)


def test_a_pipeline_of_ones_own_in_a_demo_keeps_its_state(tmp_path: Path) -> None:
    prepare_folder(tmp_path)
    write_sample(tmp_path)
    own = tmp_path / "pipelines" / "trips" / "pipeline.yaml"
    own.parent.mkdir()
    own.write_text("name: trips\n")
    with pytest.raises(ConfigError, match=r"trips/pipeline\.yaml is not what the demo wrote"):
        prepare_folder(tmp_path)


@pytest.mark.usefixtures("clean_environment")
def test_the_demo_uses_its_own_broker_and_the_downloads_that_are_there(tmp_path: Path) -> None:
    os.environ.update({"RIVERTWICE_BOOTSTRAP": "broker:9092", "RIVERTWICE_SHARED": "s3://bucket/prefix"})
    mine = Settings(project=tmp_path / "mine", home=tmp_path / "home", bootstrap="broker:9092")
    settings = demo_settings(mine, tmp_path / "demo")
    assert (settings.project, settings.home) == (tmp_path / "demo", tmp_path / "demo" / ".rivertwice")
    assert (settings.bootstrap, settings.shared, settings.build) == (None, None, tmp_path / "mine" / ".build")
    assert {name for name in os.environ if name.startswith("RIVERTWICE_")} == {
        "RIVERTWICE_PROJECT", "RIVERTWICE_DOWNLOADS",
    }  # fmt: skip


def test_a_command_of_the_demo_is_printed_and_its_result_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(project=tmp_path, home=tmp_path / ".rivertwice")
    with click.Context(cli, info_name="rivertwice"):
        verbs = Verbs(settings, Teller(to_stderr=False))
        written = verbs.run("init", "--sample")
        assert {"path": "pipelines/orders/pipeline.yaml", "state": "written"} in written["files"]
        assert capsys.readouterr().out == "   $ rivertwice init --sample\n"
        with pytest.raises(RequestError, match="no pipeline 'ordres'"):
            verbs.run("start", "ordres")
        (tmp_path / "pipelines" / "orders" / "transform.sql").unlink()
        with pytest.raises(DemoError, match="`rivertwice lint orders --without-spark` ended with 3"):
            verbs.run("lint", "orders", "--without-spark")


def test_the_last_lines_say_where_it_is_how_to_see_it_and_what_comes_next(tmp_path: Path) -> None:
    _, held, where, see, own = ending(tmp_path, Teller(to_stderr=False), None).splitlines()
    assert (held.startswith("Every step held"), str(tmp_path) in where, "rivertwice down" in where) == (
        True,
        True,
        True,
    )
    assert ("--airflow" in see, "--from-file" in own, "--from-topic" in own) == (True, True, True)
    info = {"url": "http://127.0.0.1:8080", "user": "admin", "password": "secret"}
    assert "http://127.0.0.1:8080/rivertwice/#/p/orders, user admin, password secret" in ending(
        tmp_path, Teller(to_stderr=False), info
    )
