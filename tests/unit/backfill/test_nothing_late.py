"""`rivertwice backfill` without a range where nothing is late: it says so, with what to do, and that is not a failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from homes.backfill import make_home
from homes.ledger import NOW
from rivertwice.backfill import observe
from rivertwice.cli.main import cli
from rivertwice.core.settings import Settings
from rivertwice.reconcile.results import Stamp, store_run
from rivertwice.timeline.sequence import read_sequence


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A home with batches; Kafka has all that they read."""
    monkeypatch.setattr(observe, "_in_kafka", lambda *_: {0: (0, 1_000_000)})
    return make_home(tmp_path)[0]


def backfill(settings: Settings, *words: str) -> Result:
    return CliRunner().invoke(cli, ["backfill", *words], env=settings.to_env())


def reconcile(settings: Settings) -> None:
    summary = {
        "counts": {}, "balance": {}, "late_by_partition": {}, "gate": {"passed": True, "alerts": []}, "duration_s": 1.0,
    }  # fmt: skip
    store_run(settings.pipeline("p"), Stamp("rc-1", "p", NOW, "t1", 1, "b", 1, {}), [], [], summary)


@pytest.mark.parametrize("words", [("run", "p", "--yes"), ("run", "p"), ("plan", "p"), ("plan", "p", "--save")])
def test_nothing_late_is_told_with_the_next_command(settings: Settings, words: tuple[str, ...]) -> None:
    reconcile(settings)
    before = read_sequence(settings.pipeline("p"))
    result = backfill(settings, *words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert result.stdout.startswith("nothing to do: no window of p is stale")
    assert "if records came since, run `rivertwice reconcile p` first" in result.stdout
    shown = json.loads(backfill(settings, *words, "--output", "json").stdout)
    assert (shown["backfill"], shown["windows"], "no window of p is stale" in shown["nothing"]) == (None, 0, True)
    assert read_sequence(settings.pipeline("p")) == before


@pytest.mark.parametrize("command", ["run", "plan"])
def test_what_was_never_reconciled_may_have_late_windows(settings: Settings, command: str) -> None:
    result = backfill(settings, command, "p")
    assert result.exit_code == 1
    assert "p was never reconciled" in result.stderr
    assert "run `rivertwice reconcile p`" in result.stderr
