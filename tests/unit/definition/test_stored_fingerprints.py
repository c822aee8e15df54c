"""Fingerprints are stored with every timeline and savepoint: a definition that did not change keeps its own."""

from __future__ import annotations

import json
from pathlib import Path

from homes.project import REPOSITORY
from rivertwice.definition.definition import load_definition
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.definition.kinds import KINDS

STORED = json.loads(Path(__file__).with_name("fingerprints.json").read_text())
FOLDERS = {
    path.parent.name: path.parent
    for root in ("pipelines", "lab/faults/pipelines")
    for path in sorted((REPOSITORY / root).rglob("pipeline.yaml"))
}


def test_a_definition_that_did_not_change_keeps_its_fingerprint() -> None:
    """If a change means that stored state has another meaning, raise COMPILER_VERSION and renew the file on purpose."""
    assert {name: fingerprint_of(load_definition(folder)).hashes() for name, folder in FOLDERS.items()} == STORED


def test_every_kind_of_windows_has_a_stored_fingerprint() -> None:
    assert {load_definition(folder).window.kind for folder in FOLDERS.values()} == set(KINDS)
