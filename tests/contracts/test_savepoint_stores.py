"""A savepoint lives the same life in a local folder and in an S3 bucket."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from homes.savepoint import NOW, make_home
from rivertwice.core.errors import SavepointError
from rivertwice.core.settings import Settings
from rivertwice.savepoint.catalogue import list_savepoints, load_savepoint, savepoint_store
from rivertwice.savepoint.prune import pin_savepoint, prune_savepoints
from rivertwice.savepoint.take import take_savepoint


@pytest.fixture
def settings(place, tmp_path):
    made, _ = make_home(tmp_path)
    return replace(made, savepoint_store=place) if place.startswith("s3://") else made


def test_taken_listed_verified_fetched_pinned_and_pruned(settings, tmp_path):
    home = settings.pipeline("p")
    old, new = (take_savepoint(settings, "p", now=NOW + timedelta(hours=hour)) for hour in range(2))
    assert [savepoint.id for savepoint in list_savepoints(home)] == [old.id, new.id]
    assert load_savepoint(home, old.id).verify_files() == old.manifest.size
    old.download(tmp_path / "fetched")
    assert (tmp_path / "fetched/offsets/3").read_text() == old.manifest.offsets_text
    pin_savepoint(home, old.id, by="test", now=NOW)
    assert prune_savepoints(home, keep=0, now=NOW).deleted == ()
    savepoint_store(home).delete(f"{old.id}/pin.json")
    assert prune_savepoints(home, keep=0, now=NOW).deleted == (old.id,)
    assert [key for key in savepoint_store(home).list() if key.startswith(old.id)] == []
    assert [savepoint.id for savepoint in list_savepoints(home)] == [new.id]


def test_a_flipped_byte_is_refused_wherever_it_lies(settings, tmp_path):
    taken = take_savepoint(settings, "p", now=NOW)
    data = bytearray(taken.store.get(taken.key("offsets/3")))
    data[5] ^= 1
    taken.store.put(taken.key("offsets/3"), bytes(data))
    with pytest.raises(SavepointError, match="offsets/3 has"):
        taken.verify_files()
    with pytest.raises(SavepointError, match="damaged"):
        taken.download(tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()


def test_a_child_process_gets_the_same_store(settings):
    again = Settings.from_env(settings.to_env())
    assert again.savepoint_store == settings.savepoint_store
    assert str(savepoint_store(again.pipeline("p"))) == str(savepoint_store(settings.pipeline("p")))
