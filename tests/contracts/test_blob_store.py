"""Every object store behaves alike, the lost race included."""

from __future__ import annotations

import hashlib
import uuid

import pytest

from rivertwice.core.errors import ConfigError, RequestError, ServiceError
from rivertwice.storage import places
from rivertwice.storage.blobs import Versioned
from rivertwice.storage.local import LocalStore
from rivertwice.storage.s3 import S3Store

BUCKET = "rivertwice"
RACERS, ROUNDS = 20, 10


@pytest.fixture
def store(store_place):
    return places.open_store(store_place)


def test_what_is_put_is_read_back_and_a_second_put_replaces_it(store):
    store.put("a/b.json", b"one")
    store.put("a/b.json", b"two")
    assert store.get("a/b.json") == b"two"


def test_an_absent_object_is_none_and_deleting_it_is_fine(store):
    assert store.get("nothing/here") is None
    assert store.get_versioned("nothing/here") is None
    store.delete("nothing/here")


def test_put_if_absent_keeps_the_first(store):
    assert store.put_if_absent("m.json", b"first")
    assert not store.put_if_absent("m.json", b"second")
    assert not store.put_if_absent("m.json", b"first")  # equal bytes are not ours
    assert store.get("m.json") == b"first"


def test_of_many_racers_exactly_one_creates_the_object(store, racers, on_moto):
    if on_moto:
        pytest.skip("moto lets two of racing writers win now and then; it is for single writers")
    for turn in range(ROUNDS):
        key = f"race/{turn}"
        won = racers(RACERS, lambda number, key=key: store.put_if_absent(key, b"%d" % number))
        assert won.count(True) == 1
        assert store.get(key) == b"%d" % won.index(True)


def test_a_replacement_needs_the_version_that_was_read(store):
    store.put("lease", b"one")
    seen = store.get_versioned("lease")
    assert seen == Versioned(b"one", seen.version)
    assert store.put_if_version("lease", b"two", seen.version)
    assert not store.put_if_version("lease", b"three", seen.version)
    assert store.get("lease") == b"two"


def test_what_is_gone_cannot_be_replaced(store):
    store.put("lease", b"one")
    seen = store.get_versioned("lease")
    store.delete("lease")
    assert not store.put_if_version("lease", b"two", seen.version)
    assert store.get("lease") is None


def test_of_many_racers_exactly_one_replaces_a_version(store, racers, on_moto):
    if on_moto:
        pytest.skip("moto lets two of racing writers win now and then; it is for single writers")
    store.put("lease", b"start")
    for _ in range(ROUNDS):
        seen = store.get_versioned("lease")
        bodies = [uuid.uuid4().bytes for _ in range(RACERS)]
        won = racers(RACERS, lambda n, s=seen, b=bodies: store.put_if_version("lease", b[n], s.version))
        assert won.count(True) == 1
        assert store.get("lease") == bodies[won.index(True)]


def test_listing_is_sorted_by_prefix_and_leaves_writes_in_progress_out(store):
    for key in ("sp-1/x", "sp-1/checkpoint/offsets/.0.crc", "sp-10/x", "sp-1/.y.k2.tmp"):
        store.put(key, b"")
    assert store.list("sp-1/") == ["sp-1/checkpoint/offsets/.0.crc", "sp-1/x"]
    assert store.list("sp-1") == ["sp-1/checkpoint/offsets/.0.crc", "sp-1/x", "sp-10/x"]
    assert store.list("absent/") == []
    assert len(store.list()) == 3


def test_a_listing_is_complete_beyond_one_page(store, racers):
    racers(8, lambda part: [store.put(f"many/{part}/{number:03d}", b"") for number in range(126)])
    found = store.list("many/")
    assert len(found) == 1008
    assert found == sorted(found)


def test_files_go_in_and_come_out_whole(store, tmp_path):
    data = bytes(range(256)) * 5000
    (tmp_path / "in").write_bytes(data)
    store.put_file("deep/er/blob", tmp_path / "in")
    store.copy("deep/er/blob", "other/blob")
    store.get_file("other/blob", tmp_path / "new" / "out")
    assert (tmp_path / "new" / "out").read_bytes() == data


def test_a_file_of_many_parts_is_the_same_file_afterwards(store, tmp_path):
    block = hashlib.sha256(b"seed").digest() * 2048  # 64 KiB
    with (tmp_path / "in").open("wb") as file:
        for number in range(400):  # 25 MiB: four parts of an upload
            file.write(number.to_bytes(4, "big") + block)
    store.put_file("big", tmp_path / "in")
    store.copy("big", "copy")
    store.get_file("copy", tmp_path / "out")
    assert store.list() == ["big", "copy"]
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()


def test_a_copy_replaces_its_target(store):
    store.put("a", b"new")
    store.put("b", b"old")
    store.copy("a", "b")
    assert store.get("b") == b"new"


def test_fetching_or_copying_what_is_absent_says_so(store, tmp_path):
    with pytest.raises(FileNotFoundError):
        store.get_file("nothing", tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        store.copy("nothing", "target")
    assert store.list() == []
    assert not (tmp_path / "out").exists()


def test_a_deleted_object_is_gone_and_its_neighbours_stay(store):
    store.put("a/b/c", b"")
    store.put("a/d", b"")
    store.delete("a/b/c")
    assert store.list() == ["a/d"]


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/.", "a\\b", "a\x00b", "ä", "x" * 1000]
)
def test_a_key_cannot_leave_the_store(tmp_path, key):
    store = LocalStore(tmp_path / "store")
    with pytest.raises(RequestError, match="is not a valid key"):
        store.put(key, b"")
    with pytest.raises(RequestError):
        store.put_if_absent(key, b"")
    with pytest.raises(RequestError):
        store.put_if_version(key, b"", "v")


class Careless:
    """An endpoint that ignores a condition, as some S3 servers do."""

    def __init__(self, client, ignored):
        self._client = client
        self._ignored = ignored

    def put_object(self, **given):
        given.pop(self._ignored, None)
        return self._client.put_object(**given)

    def __getattr__(self, name):
        return getattr(self._client, name)


@pytest.mark.proves(
    "howto-deploy.md#which-stores-will-do",
    "howto-savepoints.md#where-they-are-stored",
    "guarantees.md#what-everything-needs",
)
@pytest.mark.parametrize(("ignored", "header"), [("IfNoneMatch", "If-None-Match"), ("IfMatch", "If-Match")])
def test_an_endpoint_that_lets_two_writers_win_is_refused(s3_world, ignored, header):
    with pytest.raises(ConfigError, match=header):
        S3Store(BUCKET, f"careless-{ignored}", client=Careless(s3_world.client, ignored))
    assert "Contents" not in s3_world.client.list_objects_v2(Bucket=BUCKET, Prefix=f"careless-{ignored}")


def test_a_bucket_that_does_not_exist_is_a_service_error(s3_world):
    with pytest.raises(ServiceError, match="no-such"):
        S3Store("no-such", client=s3_world.client)


def test_two_prefixes_of_a_bucket_do_not_see_each_other(s3_world):
    left, right = (S3Store(BUCKET, f"pair/{name}", client=s3_world.client) for name in ("left", "left2"))
    left.put("x", b"1")
    assert right.list() == []


def test_a_place_names_a_folder_or_a_bucket(tmp_path, s3_world):
    assert isinstance(places.open_store(tmp_path), LocalStore)
    assert str(places.open_store(f"s3://{BUCKET}/a/b")) == f"s3://{BUCKET}/a/b/"
    with pytest.raises(ConfigError, match="names no store"):
        places.open_store("gcs://bucket/x")
