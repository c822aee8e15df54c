"""`rivertwice upgrade NAME --new-version` and `rivertwice version` where neither Spark nor Kafka may be asked."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from click.testing import CliRunner, Result

from homes.backfill import NOW, make_home
from rivertwice.cli import cli
from rivertwice.config import Settings
from rivertwice.timeline.intent import read_intent, write_intent


def changed(folder: Path) -> Settings:
    """Return a project whose pipeline emits updates, so that its past cannot be loaded by batch, and was edited."""
    settings, home, _ = make_home(folder, emit="updates")
    write_intent(home, "stopped", "test", NOW)
    sql = settings.definitions / "p" / "transform.sql"
    sql.write_text(sql.read_text().replace("count(*)", "1 + count(*)"))
    return settings


def run(settings: Settings, *arguments: str) -> Result:
    with mock.patch("rivertwice.pipeline.engine.spark_session", side_effect=AssertionError("Spark was started")):
        return CliRunner().invoke(cli, list(arguments), env=settings.to_env())


def test_what_cannot_be_loaded_by_batch_streams_the_whole_log(tmp_path: Path) -> None:
    settings = changed(tmp_path)
    begun = run(settings, "upgrade", "p", "--new-version", "--confirm")
    assert begun.exit_code == 0, (begun.output, begun.exception)
    assert "the whole log is streamed, because it has emit: updates" in begun.output
    assert "`rivertwice version compare p@v2`" in begun.output
    intent = read_intent(settings.pipeline("p@v2"))
    assert intent is not None
    assert intent.desired == "running"
    listed = run(settings, "version", "list", "p").output
    assert "p@v2" in listed
    assert "serves: p" in listed
    assert run(settings, "version", "list", "p@v2").exit_code == 1


def test_savepoints_have_no_place_in_a_new_version(tmp_path: Path) -> None:
    refused = run(changed(tmp_path), "upgrade", "p", "--new-version", "--abandon")
    assert refused.exit_code == 2
    assert "leave --savepoint, --unproved and --abandon out" in refused.output


def test_a_comparison_without_proofs_says_what_to_run(tmp_path: Path) -> None:
    settings = changed(tmp_path)
    run(settings, "upgrade", "p", "--new-version", "--confirm")
    refused = run(settings, "version", "compare", "p@v2")
    assert refused.exit_code == 3, (refused.output, refused.exception)
    for name in ("p", "p@v2"):
        assert f"no reconcile has proved what {name} serves; run `rivertwice reconcile {name}`" in refused.output
