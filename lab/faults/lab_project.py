"""The project of a lab run, and the producer's notes of what the broker acknowledged."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lab.faults.events import Event
from rivertwice.core.settings import Settings
from rivertwice.log.send import Sent

PIPELINE = "lab_sums"
DEFINITION = Path(__file__).parent / "pipelines" / PIPELINE


def make_project(settings: Settings, project: Path, *, topic: str, partitions: int, pins: Mapping[str, Any]) -> None:
    """Make a project whose one pipeline is lab_sums on a topic of its own.

    Args:
        settings: settings of the project that has Spark's jars and the suites; they are linked.
        project: the folder of the project to make.
        topic: the topic that the pipeline reads.
        partitions: partitions of the topic.
        pins: values that replace the definition's stream settings.
    """
    target = project / "pipelines" / PIPELINE
    target.parent.mkdir(parents=True)
    shutil.copytree(DEFINITION, target)
    for name in (".build", "expectations"):
        if (settings.project / name).exists():
            (project / name).symlink_to(settings.project / name)
    document = yaml.safe_load((target / "pipeline.yaml").read_text())
    document["sources"]["events"] |= {"topic": topic, "partitions": partitions}
    document["stream"] |= dict(pins)
    (target / "pipeline.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


def edit_definition(settings: Settings, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the definition of a run's pipeline."""
    path = settings.definitions / PIPELINE / "pipeline.yaml"
    document = yaml.safe_load(path.read_text())
    change(document)
    path.write_text(yaml.safe_dump(document, sort_keys=False))


def note_events(notes: Path, events: Sequence[Event], places: Sequence[Sent]) -> None:
    """Append a line of JSON per acknowledged event, with its address, for the oracle."""
    with notes.open("a") as file:
        for event, place in zip(events, places, strict=True):
            note = {
                "partition": place.partition,
                "offset": place.offset,
                "key": None if event.key is None else b64encode(event.key).decode(),
                "value": None if event.value is None else b64encode(event.value).decode(),
                "timestamp_ms": event.timestamp_ms,
                "headers": [[name, b64encode(value).decode()] for name, value in event.headers],
            }
            file.write(json.dumps(note) + "\n")
