"""Every object store behaves alike, the lost race included."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest
from moto.server import ThreadedMotoServer

from rivertwice.errors import ConfigError, RequestError, ServiceError
from rivertwice.store import places
from rivertwice.store.local import LocalStore
from rivertwice.store.s3 import S3Store


@pytest.fixture(scope="module")
def endpoint():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="savepoints")
    return client


@pytest.fixture(params=["local", "s3"])
def store(request, tmp_path):
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    client = request.getfixturevalue("s3")
    return S3Store("savepoints", f"run/{tmp_path.name}", client=client)


def test_what_is_put_is_read_back_and_a_second_put_replaces_it(store):
    store.put("a/b.json", b"one")
    store.put("a/b.json", b"two")
    assert store.get("a/b.json") == b"two"


def test_an_absent_object_is_none_and_deleting_it_is_fine(store):
    assert store.get("nothing/here") is None
    store.delete("nothing/here")


def test_put_if_absent_keeps_the_first(store):
    assert store.put_if_absent("m.json", b"first")
    assert not store.put_if_absent("m.json", b"second")
    assert store.get("m.json") == b"first"


def test_of_many_racers_exactly_one_creates_the_object(store):
    for turn in range(5):
        gate = threading.Barrier(8)

        def race(number, key=f"race/{turn}", gate=gate):
            gate.wait()
            return store.put_if_absent(key, b"%d" % number), number

        with ThreadPoolExecutor(8) as pool:
            winners = [number for won, number in pool.map(race, range(8)) if won]
        assert len(winners) == 1
        assert store.get(f"race/{turn}") == b"%d" % winners[0]


def test_listing_is_sorted_by_prefix_and_leaves_writes_in_progress_out(store):
    for key in ("sp-1/x", "sp-1/checkpoint/offsets/.0.crc", "sp-10/x", "sp-1/.y.k2.tmp"):
        store.put(key, b"")
    assert store.list("sp-1/") == ["sp-1/checkpoint/offsets/.0.crc", "sp-1/x"]
    assert store.list("sp-1") == ["sp-1/checkpoint/offsets/.0.crc", "sp-1/x", "sp-10/x"]
    assert store.list("absent/") == []
    assert len(store.list()) == 3


def test_files_go_in_and_come_out_whole(store, tmp_path):
    data = bytes(range(256)) * 5000
    (tmp_path / "in").write_bytes(data)
    store.put_file("deep/er/blob", tmp_path / "in")
    store.copy("deep/er/blob", "other/blob")
    store.get_file("other/blob", tmp_path / "new" / "out")
    assert (tmp_path / "new" / "out").read_bytes() == data


def test_fetching_or_copying_what_is_absent_says_so(store, tmp_path):
    with pytest.raises(FileNotFoundError):
        store.get_file("nothing", tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        store.copy("nothing", "target")
    assert store.list() == []


def test_a_deleted_object_is_gone_and_its_neighbours_stay(store):
    store.put("a/b/c", b"")
    store.put("a/d", b"")
    store.delete("a/b/c")
    assert store.list() == ["a/d"]


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/.", "a\\b", "a\x00b", "ä", "x" * 1000]
)
def test_a_key_cannot_leave_the_store(store, key):
    with pytest.raises(RequestError, match="no key"):
        store.put(key, b"")
    with pytest.raises(RequestError):
        store.put_if_absent(key, b"")


class Careless:
    """An endpoint that ignores If-None-Match, as some S3 servers do."""

    def __init__(self, client):
        self._client = client

    def put_object(self, *, IfNoneMatch="", **given):  # noqa: N803
        return self._client.put_object(**given)

    def __getattr__(self, name):
        return getattr(self._client, name)


def test_an_endpoint_that_lets_two_writers_win_is_refused(s3):
    with pytest.raises(ConfigError, match="If-None-Match"):
        S3Store("savepoints", "careless", client=Careless(s3))
    assert "Contents" not in s3.list_objects_v2(Bucket="savepoints", Prefix="careless")


def test_a_bucket_that_does_not_exist_is_a_service_error(s3):
    with pytest.raises(ServiceError, match="no-such"):
        S3Store("no-such", client=s3)


def test_two_prefixes_of_a_bucket_do_not_see_each_other(s3):
    left, right = S3Store("savepoints", "left", client=s3), S3Store("savepoints", "left2", client=s3)
    left.put("x", b"1")
    assert right.list() == []


def test_a_place_names_a_folder_or_a_bucket(tmp_path, s3, endpoint, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert isinstance(places.open_store(tmp_path), LocalStore)
    assert str(places.open_store("s3://savepoints/a/b")) == "s3://savepoints/a/b/"
    with pytest.raises(ConfigError, match="names no store"):
        places.open_store("gs://bucket/x")
