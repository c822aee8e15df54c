"""`rivertwice up --sample`: which samples are sent, and what is said of the others. Sending itself: tests/integration/test_tutorial.py."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from histories.kinds import definition_files
from homes.project import make_project
from rivertwice.cli.frame import Frame
from rivertwice.cli.services import send_samples
from rivertwice.core.errors import RequestError
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition, load_definition
from rivertwice.local import produce

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def made(root: Path, kind: str) -> tuple[Settings, Definition]:
    settings = make_project(root, {"histories": definition_files(kind)})
    return settings, load_definition(settings.definitions / "histories")


def test_a_pipeline_without_a_sample_is_left_out(tmp_path: Path) -> None:
    settings, definition = made(tmp_path, "tumbling")
    assert produce.send_sample(settings, definition, NOW) is None
    with pytest.raises(RequestError, match=r"no pipeline in .* has a sample\.jsonl.*`rivertwice init --sample`"):
        send_samples(Frame(settings, "text", debug=False), [definition])


def test_a_topic_that_holds_records_gets_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, definition = made(tmp_path, "tumbling")
    (settings.definitions / "histories" / produce.SAMPLE_FILE).write_text("{}\n")
    monkeypatch.setattr(produce.kafka, "end_offsets", lambda *_: {0: 2, 1: 3})
    assert (
        produce.send_sample(settings, definition, NOW)
        == "topic events holds 5 records, so its sample is not sent again"
    )


def test_a_sample_of_several_topics_is_refused(tmp_path: Path) -> None:
    settings, definition = made(tmp_path, "as-of intervals")
    (settings.definitions / "histories" / produce.SAMPLE_FILE).write_text("{}\n")
    with pytest.raises(RequestError, match="histories has several sources"):
        produce.send_sample(settings, definition, NOW)
