"""`rivertwice upgrade NAME --new-version` and `rivertwice version` where Spark may not be asked, and Kafka is a few numbers."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from homes.backfill import NOW, make_home
from rivertwice.cli.main import cli
from rivertwice.core.settings import Settings
from rivertwice.log import kafka
from rivertwice.timeline.intent import Intent, write_intent
from rivertwice.timeline.stream_load import StreamLoad


def changed(folder: Path) -> Settings:
    """Return a project whose pipeline has sessions, so that its past cannot be loaded by batch, and was edited."""
    settings, home, _ = make_home(folder, session=True)
    write_intent(home, "stopped", "test", NOW)
    sql = settings.definitions / "p" / "transform.sql"
    sql.write_text(sql.read_text().replace("count(*)", "1 + count(*)"))
    return settings


def run(settings: Settings, *arguments: str) -> Result:
    answers = {"topic_id": "id", "cluster_id": "c", "begin_offsets": {0: 0}, "end_offsets": {0: 40}}
    with (
        mock.patch("rivertwice.engine.session.spark_session", side_effect=AssertionError("Spark was started")),
        mock.patch.multiple(kafka, **{name: mock.Mock(return_value=answer) for name, answer in answers.items()}),
    ):
        return CliRunner().invoke(cli, list(arguments), env=settings.to_env())


def test_what_backfills_cannot_load_the_stream_loads_in_large_batches(tmp_path: Path) -> None:
    settings = changed(tmp_path)
    begun = run(settings, "upgrade", "p", "--new-version", "--yes")
    assert begun.exit_code == 0, (begun.output, begun.exception)
    assert "40 records in about 1 batches of at most 1000000 records" in begun.output
    assert "no backfill can load this past: its windows are session, gap 1 hour" in begun.output
    assert "`rivertwice version serve p@v2`" in begun.output
    intent = Intent.load(settings.pipeline("p@v2"))
    assert intent is not None
    assert intent.desired == "running"
    load = StreamLoad.load(settings.pipeline("p@v2"))
    assert load is not None
    assert load.records == 40
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
    run(settings, "upgrade", "p", "--new-version", "--yes")
    refused = run(settings, "version", "compare", "p@v2")
    assert refused.exit_code == 3, (refused.output, refused.exception)
    for name in ("p", "p@v2"):
        assert f"no reconcile has proved what {name} serves; run `rivertwice reconcile {name}`" in refused.output


def test_the_same_definition_is_computed_again_only_if_that_is_asked_for(tmp_path: Path) -> None:
    settings, home, _ = make_home(tmp_path, session=True)
    write_intent(home, "stopped", "test", NOW)
    refused = run(settings, "upgrade", "p", "--new-version")
    assert refused.exit_code == 1
    assert "`rivertwice upgrade p --new-version --recompute` computes all again" in refused.output
    assert run(settings, "upgrade", "p", "--recompute").exit_code == 2
    with mock.patch("rivertwice.versions.plan.view_retention", return_value=mock.Mock(topics=[])):
        shown = run(settings, "upgrade", "p", "--new-version", "--recompute", "--dry-run")
    assert shown.exit_code == 0, (shown.output, shown.exception)
    assert "component  none differs" in shown.output
    assert "to do it: rivertwice upgrade p --new-version --recompute --yes" in shown.output
    begun = run(settings, "upgrade", "p", "--new-version", "--recompute", "--yes")
    assert begun.exit_code == 0, (begun.output, begun.exception)
    assert StreamLoad.load(settings.pipeline("p@v2")) is not None


@pytest.mark.proves("howto-change.md#another-key")
def test_a_suite_that_does_not_fit_the_new_rows_is_named_before_anything_is_computed(tmp_path: Path) -> None:
    settings = changed(tmp_path)
    suite = settings.project / "expectations" / "p" / "windows.json"
    suite.parent.mkdir(parents=True)
    wanted = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "gone"}}
    suite.write_text(json.dumps({"name": "p", "expectations": [wanted], "meta": {}}))
    refused = run(settings, "upgrade", "p", "--new-version", "--yes")
    assert refused.exit_code == 1
    assert "the rows have no column 'gone'" in refused.output
    assert not settings.pipeline("p@v2").root.exists()
    own = settings.project / "expectations" / "p@v2" / "windows.json"
    own.parent.mkdir()
    own.write_text(suite.read_text().replace("gone", "k"))
    assert run(settings, "upgrade", "p", "--new-version", "--yes").exit_code == 0
