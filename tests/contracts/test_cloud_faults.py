"""A store of the cloud that answers wrongly: what was done is recognised, what was not is repeated, nothing is half there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

from lab.faults.azure_server import AzureServer
from lab.faults.gcs_server import GcsServer
from lab.faults.s3_proxy import Fault, S3Proxy, s3_proxy
from rivertwice.core.errors import ConfigError, LostRaceError, ServiceError, UnknownOutcomeError
from rivertwice.storage import places
from rivertwice.storage.blobs import Patience, Versioned, require_conditions
from rivertwice.storage.cloud import CloudStore
from rivertwice.storage.table import Table
from rivertwice.storage.table_files import TableFiles
from rivertwice.stream.failures import classify_failure

CONTAINER = "rivertwice"
ROWS = pa.table({"n": pa.array([1], pa.int64())})
LOST = ["error_500", "reset_request", "drop_after", "hang_after"]


@pytest.fixture(params=["azurite", "fake_gcs"])
def server(request: pytest.FixtureRequest) -> AzureServer | GcsServer:
    return request.getfixturevalue(request.param)


@pytest.fixture
def proxy(server: AzureServer | GcsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    with s3_proxy(server.endpoint) as running:
        for name, value in server.env(running.endpoint).items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def place(server: AzureServer | GcsServer) -> str:
    return server.address(CONTAINER, f"faults/{uuid.uuid4().hex[:12]}")


@pytest.fixture
def store(proxy: S3Proxy, place: str) -> CloudStore:
    return CloudStore(place, Patience(2.0, 1.0, 3))


@pytest.mark.proves("failure-modes.md#a-write-to-s3")
@pytest.mark.parametrize("kind", LOST)
def test_a_creation_whose_answer_is_lost_is_ours_or_is_said_to_be_unknown(store, proxy, kind):
    proxy.fail(Fault(kind, "PUT", "manifest"))
    try:
        assert store.put_if_absent("manifest", b"mine")
    except UnknownOutcomeError:
        assert (
            kind == "reset_request"
        )  # the client does not send a condition again on its own, and the object is not there
        assert store.get("manifest") is None
        assert store.put_if_absent("manifest", b"mine")
    assert len(proxy.met(kind)) == 1
    assert store.get("manifest") == b"mine"
    assert not store.put_if_absent("manifest", b"mine")  # the same bytes of another call are not ours


def test_a_creation_that_lost_is_not_ours_although_its_answer_was_lost(store, proxy):
    store.put("manifest", b"equal bytes")
    proxy.fail(Fault("error_500", "PUT", "manifest"))
    assert not store.put_if_absent("manifest", b"equal bytes")


@pytest.mark.proves("failure-modes.md#a-write-to-s3")
@pytest.mark.parametrize("kind", ["error_500", "drop_after"])
def test_a_replacement_whose_answer_is_lost_is_ours(store, proxy, kind):
    store.put("lease", b"one")
    seen = store.get_versioned("lease")
    proxy.fail(Fault(kind, "PUT", "lease"))
    assert store.put_if_version("lease", b"two", seen.version)
    assert store.get("lease") == b"two"


def test_an_outcome_that_cannot_be_found_out_is_said_to_be_unknown(store, proxy):
    proxy.fail(Fault("drop_after", "PUT", "new"), Fault("error_500", "GET", "new", times=None))
    with pytest.raises(UnknownOutcomeError, match="look before repeating"):
        store.put_if_absent("new", b"x")
    proxy.heal()
    assert store.get("new") == b"x"


def test_a_server_that_stays_down_is_a_service_error_of_class_store(store, proxy):
    proxy.fail(Fault("slow_down", times=None))
    for act in (lambda: store.get("a"), lambda: store.put("a", b""), lambda: store.list(), lambda: store.delete("a")):
        with pytest.raises(ServiceError) as found:
            act()
        assert classify_failure(found.value) == "store"


def test_a_body_that_breaks_off_is_read_again(store, proxy, tmp_path):
    data = bytes(range(256)) * 4000
    store.put("big", data)
    proxy.fail(Fault("reset_answer", "GET", "big", times=2))
    assert store.get("big") == data
    proxy.fail(Fault("reset_answer", "GET", "big"))
    store.get_file("big", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_refusal_names_object_place_and_remedy(server, store, proxy):
    proxy.fail(Fault("forbidden", "PUT", "sp-1/", times=None))
    for act in (lambda: store.put("sp-1/x", b""), lambda: store.put_if_absent("sp-1/x", b"")):
        with pytest.raises(ServiceError, match=r"refuses.*sp-1/x.*renew them or allow it") as found:
            act()
        login = "AZURE_STORAGE_ACCOUNT_KEY" if isinstance(server, AzureServer) else "GOOGLE_APPLICATION_CREDENTIALS"
        assert login in str(found.value)
        assert classify_failure(found.value) == "store"


@pytest.mark.parametrize("kind", ["error_500", "drop_after", "reset_request"])
def test_a_table_commit_whose_answer_is_lost_is_in_the_table_once(place, proxy, kind):
    table = f"{place}/changelog"
    for batch in range(2):
        Table(table).append(ROWS, transactions={"p#t1": batch}, metadata={"ledger": {"batch": batch}})
    proxy.fail(Fault(kind, "PUT", r"_delta_log/0+\d\.json"))
    Table(table).append(ROWS, transactions={"p#t1": 2}, metadata={"ledger": {"batch": 2}})
    assert len(proxy.met(kind)) == 1
    assert Table(table).read().num_rows == 3
    assert [value["batch"] for _, value in Table(table).commits("ledger")] == [0, 1, 2]
    with pytest.raises(LostRaceError):
        Table(table).append(ROWS, transactions={"p#t1": 2})


def test_a_dataset_is_read_while_other_threads_run_and_a_broken_answer_again(place, proxy):
    """The proxy is a thread of this process: a reader that kept Python's lock while it waits would wait for ever."""
    table = f"{place}/served"
    Table(table).append(ROWS)
    proxy.fail(Fault("reset_answer", "GET", r"\.parquet", times=1))
    assert TableFiles(Table(table).open()).dataset().to_table()["n"].to_pylist() == [1]
    assert len(proxy.met("reset_answer")) == 1
    proxy.fail(
        Fault("forbidden", "GET", r"\.parquet", times=None), Fault("forbidden", "HEAD", r"\.parquet", times=None)
    )
    with pytest.raises(ServiceError, match=r"refuses reading .*\.parquet"):
        TableFiles(Table(table).open()).dataset().to_table()


class Careless:
    """A store that ignores a condition."""

    def __init__(self, store: CloudStore, ignored: str) -> None:
        self._store, self._ignored = store, ignored

    def __str__(self) -> str:
        return str(self._store)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self._ignored == "If-None-Match":
            self._store.put(key, data)
            return True
        return self._store.put_if_absent(key, data)

    def put_if_version(self, key: str, data: bytes, version: str) -> bool:
        if self._ignored == "If-Match":
            self._store.put(key, data)
            return True
        return self._store.put_if_version(key, data, version)

    def get_versioned(self, key: str) -> Versioned | None:
        return self._store.get_versioned(key)

    def delete(self, key: str) -> None:
        self._store.delete(key)


@pytest.mark.parametrize("ignored", ["If-None-Match", "If-Match"])
def test_a_server_that_lets_two_writers_win_is_refused(store, ignored):
    with pytest.raises(ConfigError, match=f"{ignored}: two writers.*could both win"):
        require_conditions(Careless(store, ignored), "use another")  # type: ignore[arg-type]
    assert store.list() == []


def test_a_container_that_does_not_exist_is_a_service_error(server, proxy):
    with pytest.raises(ServiceError, match="no-such"):
        places.open_store(server.address("no-such", "x"))


@pytest.mark.parametrize(
    ("place", "variable"),
    [("az://container/a", "AZURE_STORAGE_ACCOUNT_NAME"), ("gs://bucket/a", "GOOGLE_APPLICATION_CREDENTIALS")],
)
def test_a_login_that_cannot_be_read_names_the_variable(monkeypatch, place, variable):
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/there/is/none.json")
    with pytest.raises(ServiceError, match=rf"failed at reading its login: .*{variable}"):
        places.open_store(place)


def test_both_ways_to_write_an_address_of_azure_name_the_same_objects(azurite, monkeypatch):
    for name, value in azurite.env().items():
        monkeypatch.setenv(name, value)
    place = azurite.address(CONTAINER, f"both/{uuid.uuid4().hex[:12]}")
    store = places.open_store(place)
    store.put("x", b"1")
    short = places.open_store(f"az://{CONTAINER}/{place.split('/', 3)[3]}")
    assert short.get("x") == b"1"
    assert short.list() == ["x"]
