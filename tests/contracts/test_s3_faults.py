"""F21, F22: an S3 that answers wrongly. What was done is recognised, what was not is repeated, nothing is half there."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

from homes.savepoint import NOW, make_home
from lab.faults.s3_proxy import Fault, s3_proxy
from rivertwice.core.errors import LostRaceError, ServiceError, UnknownOutcomeError
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.savepoint.prune import prune_savepoints
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.blobs import Patience
from rivertwice.storage.s3 import S3Store, s3_client
from rivertwice.storage.table import Table
from rivertwice.stream.failures import classify_failure

BUCKET = "rivertwice"


@pytest.fixture
def proxy(best_s3, monkeypatch):
    with s3_proxy(best_s3.env["AWS_ENDPOINT_URL"]) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
        yield running


@pytest.fixture
def store(proxy):
    return S3Store(BUCKET, f"faults/{uuid.uuid4().hex[:12]}", client=s3_client(proxy.endpoint, Patience(2.0, 1.0, 3)))


@pytest.mark.proves("failure-modes.md#a-write-to-s3")
@pytest.mark.parametrize("kind", ["error_500", "slow_down", "reset_request", "drop_after", "hang_after"])
def test_a_creation_whose_first_answer_is_lost_is_ours(store, proxy, kind):
    proxy.fail(Fault(kind, "PUT", "manifest"))
    assert store.put_if_absent("manifest", b"mine")
    assert len(proxy.met(kind)) == 1
    assert store.get("manifest") == b"mine"
    assert not store.put_if_absent("manifest", b"mine")  # the same bytes of another call are not ours


def test_a_creation_that_lost_is_not_ours_although_its_answer_was_lost(store, proxy):
    store.put("manifest", b"equal bytes")
    proxy.fail(Fault("drop_after", "PUT", "manifest"))
    assert not store.put_if_absent("manifest", b"equal bytes")


@pytest.mark.proves("failure-modes.md#a-write-to-s3")
def test_a_replacement_whose_first_answer_is_lost_is_ours(store, proxy):
    store.put("lease", b"one")
    seen = store.get_versioned("lease")
    proxy.fail(Fault("drop_after", "PUT", "lease"))
    assert store.put_if_version("lease", b"two", seen.version)
    assert store.get("lease") == b"two"


@pytest.mark.parametrize("act", ["create", "replace"])
def test_an_outcome_that_cannot_be_found_out_is_said_to_be_unknown(store, proxy, act):
    store.put("old", b"one")
    seen = store.get_versioned("old")
    proxy.fail(Fault("drop_after", "PUT", "(new|old)", times=3), Fault("error_500", "HEAD", times=None))
    acts = {
        "create": lambda: store.put_if_absent("new", b"x"),
        "replace": lambda: store.put_if_version("old", b"x", seen.version),
    }
    with pytest.raises(UnknownOutcomeError, match="look before repeating"):
        acts[act]()
    proxy.heal()
    assert store.get("new" if act == "create" else "old") == b"x"


@pytest.mark.faults
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
    assert len(proxy.met("reset_answer")) == 3


def test_an_absence_whose_answer_breaks_off_is_asked_for_again(store, proxy, tmp_path):
    proxy.fail(Fault("reset_answer", "GET", "nothing", times=2))
    assert store.get("nothing") is None
    proxy.fail(Fault("reset_answer", "HEAD|GET", "nothing", times=2))
    with pytest.raises(FileNotFoundError):
        store.get_file("nothing", tmp_path / "out")


def test_a_refusal_whose_answers_all_break_off_is_of_class_store(store, proxy):
    proxy.fail(Fault("reset_answer", "GET", "nothing", times=None))
    with pytest.raises(ServiceError) as found:
        store.get("nothing")
    assert classify_failure(found.value) == "store"


def test_an_upload_of_many_parts_survives_resets_and_appears_whole(store, proxy, tmp_path):
    (tmp_path / "in").write_bytes(uuid.uuid4().bytes * 1_500_000)  # 24 MB
    proxy.fail(Fault("reset_request", "PUT", "partNumber=2"), Fault("error_500", "PUT", "partNumber=3"))
    store.put_file("big", tmp_path / "in")
    store.get_file("big", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()
    proxy.fail(Fault("error_500", "PUT", "partNumber=2", times=None))
    with pytest.raises(ServiceError):
        store.put_file("half", tmp_path / "in")
    proxy.heal()
    assert store.list() == ["big"]
    assert store.get("half") is None


def test_a_copy_that_says_200_and_means_500_is_not_believed(store, proxy):
    store.put("a", b"content")
    proxy.fail(Fault("ok_with_error", "PUT", "/b$"))
    store.copy("a", "b")
    assert store.get("b") == b"content"
    assert len(proxy.met("ok_with_error")) == 1


@pytest.mark.proves("failure-modes.md#a-write-to-s3")
@pytest.mark.parametrize("kind", ["forbidden", "expired"])
def test_a_refusal_names_object_place_and_remedy_and_is_not_repeated(store, proxy, kind):
    proxy.fail(Fault(kind, "PUT", "sp-1/", times=None))
    for act in (lambda: store.put("sp-1/x", b""), lambda: store.put_if_absent("sp-1/x", b"")):
        before = len(proxy.seen)
        with pytest.raises(ServiceError, match=r"refuses.*sp-1/x.*renew them or allow it") as found:
            act()
        assert len(proxy.seen) - before == 1
        assert classify_failure(found.value) == "store"
    store.put("sp-2/x", b"")  # another prefix is not met


TABLE_ROWS = pa.table({"n": pa.array([1], pa.int64())})


@pytest.fixture
def table(proxy):
    return f"s3://{BUCKET}/tables-{uuid.uuid4().hex[:12]}/changelog"


@pytest.mark.parametrize("kind", ["error_500", "drop_after", "reset_request"])
def test_the_first_commit_creates_its_table_though_an_answer_is_lost(table, proxy, kind):
    proxy.fail(Fault(kind, "PUT", r"_delta_log/0+\.json"))
    assert Table(table).append(TABLE_ROWS, transactions={"p#t1": 0}) == 1
    assert len(proxy.met(kind)) == 1
    assert Table(table).read().num_rows == 1


def test_a_table_that_cannot_be_created_is_of_class_store(table, proxy):
    proxy.fail(Fault("reset_request", "PUT", r"_delta_log/0+\.json", times=None))
    with pytest.raises(ServiceError, match="could not be reached at creating it") as found:
        Table(table).append(TABLE_ROWS, transactions={"p#t1": 0})
    assert classify_failure(found.value) == "store"


@pytest.mark.proves("guarantees.md#what-everything-needs")
@pytest.mark.faults
@pytest.mark.parametrize("kind", ["error_500", "slow_down", "drop_after", "reset_request"])
def test_a_table_commit_whose_answer_is_lost_is_known_as_ours(table, proxy, kind):
    for batch in range(2):
        Table(table).append(TABLE_ROWS, transactions={"p#t1": batch}, metadata={"ledger": {"batch": batch}})
    proxy.fail(Fault(kind, "PUT", r"_delta_log/0+\d\.json"))
    Table(table).append(TABLE_ROWS, transactions={"p#t1": 2}, metadata={"ledger": {"batch": 2}})
    assert len(proxy.met(kind)) == 1
    assert Table(table).read().num_rows == 3
    assert [value["batch"] for _, value in Table(table).commits("ledger")] == [0, 1, 2]
    with pytest.raises(LostRaceError):
        Table(table).append(TABLE_ROWS, transactions={"p#t1": 2})


@pytest.mark.faults
def test_an_append_whose_answer_is_lost_is_in_the_table_once(table, proxy):
    Table(table).append(TABLE_ROWS)
    proxy.fail(Fault("drop_after", "PUT", r"_delta_log/0+\d\.json"))
    Table(table).append(TABLE_ROWS)
    assert Table(table).read().num_rows == 2


@pytest.mark.faults
def test_a_table_that_may_not_be_written_says_so_and_stays_as_it_was(table, proxy):
    Table(table).append(TABLE_ROWS, transactions={"p#t1": 0})
    proxy.fail(Fault("forbidden", "PUT", "changelog/", times=None))
    with pytest.raises(ServiceError, match=r"changelog.*credentials") as found:
        Table(table).append(TABLE_ROWS, transactions={"p#t1": 1})
    assert classify_failure(found.value) == "store"
    proxy.heal()
    assert Table(table).applied_version("p#t1") == 0
    assert Table(table).append(TABLE_ROWS, transactions={"p#t1": 1}) > 0


@pytest.fixture
def settings(proxy, tmp_path):
    made, _ = make_home(tmp_path)
    return replace(made, savepoint_store=f"s3://{BUCKET}/points-{uuid.uuid4().hex[:12]}")


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["error_500", "slow_down", "drop_after", "reset_request"])
def test_a_savepoint_taken_through_faults_is_whole(settings, proxy, kind):
    list_savepoints(settings.pipeline("p"))  # the probe
    proxy.fail(*(Fault(kind, "PUT", part) for part in ("offsets/", "commits/", "manifest", "taking")))
    taken = take_savepoint(settings, "p", now=NOW)
    assert len(proxy.met(kind)) == 4
    assert taken.verify_files() == taken.manifest.size


@pytest.mark.faults
@pytest.mark.parametrize("part", ["offsets/", "state/", "manifest", "taking"])
def test_a_savepoint_that_could_not_be_finished_is_not_there(settings, proxy, part):
    home = settings.pipeline("p")
    list_savepoints(home)
    proxy.fail(Fault("forbidden", "PUT", part, times=None))
    with pytest.raises(ServiceError):
        take_savepoint(settings, "p", now=NOW)
    assert list_savepoints(home) == []
    proxy.heal()
    taken = take_savepoint(settings, "p", now=NOW)
    assert [savepoint.id for savepoint in list_savepoints(home)] == [taken.id]


@pytest.mark.proves("howto-deploy.md#when-s3-fails")
@pytest.mark.faults
def test_a_stale_listing_hides_no_savepoint_from_prune_and_shows_no_half(settings, proxy):
    home = settings.pipeline("p")
    first = take_savepoint(settings, "p", now=NOW)
    assert [savepoint.id for savepoint in list_savepoints(home)] == [first.id]
    second = take_savepoint(settings, "p", now=NOW)
    proxy.fail(Fault("stale_list", "GET", "list-type=2", times=None))
    assert [savepoint.id for savepoint in list_savepoints(home)] == [first.id]
    prune_savepoints(home, keep=1, now=NOW)
    proxy.heal()
    assert {savepoint.id for savepoint in list_savepoints(home)} == {first.id, second.id}
    assert second.verify_files() == second.manifest.size


def test_a_table_whose_answers_break_off_is_read_all_the_same(table, proxy):
    for batch in range(2):
        Table(table).append(TABLE_ROWS, transactions={"p#t1": batch}, metadata={"ledger": {"batch": batch}})
    for part in (r"_delta_log/0+\d\.json", r"\.parquet"):
        proxy.fail(Fault("reset_answer", "GET", part, times=2))
        assert Table(table).read().num_rows == 2
        proxy.heal()
    assert len(proxy.met("reset_answer")) >= 2
