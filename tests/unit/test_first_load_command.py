"""`rivertwice start NAME --from-batch` is refused before anything is asked of Kafka or Spark where it cannot be right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from histories.kinds import definition_files
from homes.backfill import make_home
from homes.first_load import ZONES, make_load
from homes.project import make_project
from rivertwice.cli import cli
from rivertwice.commands.first_load import finish
from rivertwice.commands.frame import Frame
from rivertwice.config import Settings
from rivertwice.errors import ServiceError
from rivertwice.timeline.first_load import record_load
from rivertwice.timeline.intent import read_intent


def start(settings: Settings, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["start", *arguments], env=settings.to_env())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dry-run",), "--dry-run shows what --from-batch would do"),
        (("--from-batch", "--accept-gap", "gap-0f3a9c2e71b4"), "leave one of them out"),
        (("--from-batch",), "p began already: timeline t1"),
        (("--from-batch", "--dry-run"), "p began already: timeline t1"),
    ],
)
def test_a_load_that_cannot_be_meant_is_refused(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    settings, home, _ = make_home(tmp_path)
    result = start(settings, "p", *arguments)
    assert (result.exit_code, words in result.output) == (1, True), result.output
    assert read_intent(home) is None


@pytest.mark.parametrize("kind", ["session", "fold", "as-of intervals", "hopping updates"])
def test_windows_that_cannot_be_loaded_are_refused(kind: str, tmp_path: Path) -> None:
    settings = make_project(tmp_path, {"histories": definition_files(kind)})
    result = start(settings, "histories", "--from-batch")
    assert result.exit_code == 1
    assert "histories cannot be loaded by batch" in result.output
    assert "`rivertwice start histories` streams the whole log" in result.output
    assert read_intent(settings.pipeline("histories")) is None


def test_a_load_goes_on_where_no_agent_lives_only_to_say_so(tmp_path: Path) -> None:
    """The windows of hours 0 to 8 would have to be closed, and are closed until hour 8: no stream runs that could close them."""
    settings, home, bundle = make_home(tmp_path)
    record_load(home, make_load(bundle, before_ms=9 * 3_600_000), ZONES)
    result = start(settings, "p", "--from-batch")
    assert result.exit_code == 1
    assert "run `rivertwice up`, then `rivertwice start p --from-batch` again: it continues" in result.output
    intent = read_intent(home)
    assert intent is not None
    assert intent.desired == "running"


@pytest.mark.parametrize(("master", "released"), [("local[2]", 0), ("spark://spark-master:7077", 1)])
def test_a_load_that_waits_for_its_stream_frees_the_cluster(master: str, released: int, tmp_path: Path) -> None:
    made, home, bundle = make_home(tmp_path)
    load = make_load(bundle, before_ms=9 * 3_600_000)
    record_load(home, load, ZONES)

    class Session:
        releases = 0

        def release(self) -> None:
            self.releases += 1

    def check_driver() -> None:
        raise ServiceError("no driver will run")

    session, frame = Session(), Frame(replace(made, spark_master=master), "text", debug=False)
    with pytest.raises(ServiceError, match="no driver will run"):
        finish(frame, load, 1, check_driver, session)  # type: ignore[arg-type]
    assert session.releases == released
