"""An archive job that loses races plans again a few times, and asks Kafka only before it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivertwice.core.errors import LostRaceError
from rivertwice.core.settings import Settings
from rivertwice.log import archive
from rivertwice.log.archive_table import Archived


class Lost:
    """Kafka's answers about a topic, and a job that another host always overtakes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *later_ids: str) -> None:
        self.asked, self.tries, self._ids = 0, 0, ["id", *later_ids]
        monkeypatch.setattr(archive.kafka, "cluster_id", lambda _: "cluster")
        monkeypatch.setattr(archive.kafka, "topic_id", lambda *_: self._answer())
        monkeypatch.setattr(archive, "archived", lambda *_: Archived())
        monkeypatch.setattr(archive._Job, "extend", lambda *_, **__: self._lose())

    def _answer(self) -> str:
        self.asked += 1
        return self._ids[min(self.asked, len(self._ids)) - 1]

    def _lose(self) -> None:
        self.tries += 1
        message = f"lost race {self.tries}"
        raise LostRaceError(message)


def test_kafka_is_not_asked_for_the_topics_id_after_the_last_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Lost(monkeypatch)
    with pytest.raises(LostRaceError, match=f"lost race {archive.RACES}"):
        archive.extend_archive(None, Settings(tmp_path, tmp_path / "home"), "flights")
    assert (lost.tries, lost.asked) == (archive.RACES, archive.RACES)  # once at the start, and before each further try


def test_a_topic_that_was_created_again_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Lost(monkeypatch, "another id")
    with pytest.raises(LostRaceError, match="lost race 1"):
        archive.extend_archive(None, Settings(tmp_path, tmp_path / "home"), "flights")
    assert (lost.tries, lost.asked) == (1, 2)
