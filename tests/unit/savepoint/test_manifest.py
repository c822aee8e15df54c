from __future__ import annotations

import json
from dataclasses import replace

import pytest

from homes.savepoint import NOW, make_home, savepoint
from rivertwice.core.errors import SavepointError
from rivertwice.savepoint.catalogue import load_savepoint
from rivertwice.savepoint.manifest import FORMAT, FileEntry, Manifest
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.local import encode_json

MANIFEST = replace(
    savepoint(7).manifest, files={f"state/0/{part}/8_aa.changelog": FileEntry("0" * 64, 1) for part in range(2)}
)


def test_a_manifest_is_read_as_it_was_written():
    assert Manifest.from_bytes(MANIFEST.to_bytes()) == MANIFEST


def test_no_bit_of_a_manifest_flips_unseen():
    data = MANIFEST.to_bytes()
    for place in range(len(data)):
        for bit in range(8):
            rotten = bytearray(data)
            rotten[place] ^= 1 << bit
            try:
                read = Manifest.from_bytes(bytes(rotten))
            except SavepointError:
                continue
            assert read == MANIFEST, f"bit {bit} of byte {place} flipped unseen"


def test_no_part_of_a_manifest_counts_as_one():
    data = MANIFEST.to_bytes()
    for size in range(len(data)):
        with pytest.raises(SavepointError):
            Manifest.from_bytes(data[:size])


def test_what_is_no_json_says_so():
    with pytest.raises(SavepointError, match="not valid JSON"):
        Manifest.from_bytes(b"{")


def test_a_manifest_of_format_1_has_no_digest_and_is_read():
    values = json.loads(MANIFEST.to_bytes())
    del values["digest"]
    assert Manifest.from_bytes(encode_json({**values, "format": 1})) == MANIFEST


@pytest.mark.proves("formats.md#savepoints")
def test_a_manifest_of_a_later_format_asks_for_a_newer_version():
    values = json.loads(MANIFEST.to_bytes())
    with pytest.raises(SavepointError, match=f"has format {FORMAT + 1}.*use a newer rivertwice"):
        Manifest.from_bytes(encode_json({**values, "format": FORMAT + 1}))
    with pytest.raises(SavepointError, match="format 3"):
        Manifest.from_bytes(b'{"format":3}')


@pytest.mark.parametrize("path", ["../../home", "/etc/passwd", "state/0/1/1_de)8779.changelog", "a//b"])
def test_a_manifest_that_lists_a_path_outside_of_its_savepoint_is_damaged(path):
    values = json.loads(MANIFEST.to_bytes())
    del values["digest"]
    values["files"] = {path: {"sha256": "0" * 64, "size": 1}}
    with pytest.raises(SavepointError, match="damaged"):
        Manifest.from_bytes(encode_json({**values, "format": 1}))


@pytest.mark.proves("formats.md#savepoints")
def test_a_proof_of_a_later_format_does_not_count(tmp_path):
    settings, home = make_home(tmp_path, planned=3, finished=3, committed=3)
    taken = take_savepoint(settings, "p", now=NOW)
    for version, status in ((1, "proved"), (2, "taken")):
        taken.store.put(f"{taken.id}/proof.json", encode_json({"format": version, "proved": True}))
        assert load_savepoint(home, taken.id).status == status
