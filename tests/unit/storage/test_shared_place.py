"""What belongs to a host lies in its home; what outlives it lies in the shared place."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rivertwice.core.errors import ConfigError
from rivertwice.core.homes import below, parse_place
from rivertwice.core.settings import Settings
from rivertwice.storage.places import local_files
from rivertwice.storage.snapshot import name_of, storage_options
from rivertwice.storage.table import Table

HOST = Path("/srv/home/pipelines/p")


def settings(**env: str) -> Settings:
    return Settings.from_env({"RIVERTWICE_PROJECT": "/srv", "RIVERTWICE_HOME": "/srv/home", **env})


def test_without_a_shared_place_everything_lies_in_the_home():
    home = settings().pipeline("p")
    assert home.place == home.root == HOST
    assert home.tables.changelog == HOST / "tables" / "changelog"
    assert (home.lease_place, home.savepoint_url) == (None, None)
    assert settings().archive("t") == Path("/srv/home/archive/t")


@pytest.mark.parametrize("shared", ["/mnt/shared", "s3://bucket/prefix"])
def test_a_shared_place_holds_what_outlives_the_host_and_nothing_else(shared):
    made = settings(RIVERTWICE_SHARED=shared)
    home = made.pipeline("p")
    there = f"{shared}/pipelines/p"
    assert str(home.tables.ledger) == f"{there}/tables/ledger"
    assert str(home.timeline_records) == f"{there}/timelines"
    assert str(home.bundles) == f"{there}/bundles"
    assert str(home.lease_place) == f"{there}/lease"
    assert home.savepoint_url == f"{there}/savepoints"
    assert str(made.archive("t")) == f"{shared}/archive/t"
    for local in (home.checkpoint("t1"), home.lease, home.intent, home.heartbeat, home.exit, home.logs, home.scratch):
        assert local.is_relative_to(HOST)


def test_savepoints_and_leases_may_lie_apart():
    made = settings(RIVERTWICE_SHARED="/mnt/s", RIVERTWICE_SAVEPOINTS="s3://points/x/", RIVERTWICE_LEASES="s3://leases")
    home = made.pipeline("p")
    assert (home.savepoint_url, home.lease_place) == ("s3://points/x/p", "s3://leases/p")


@pytest.mark.parametrize("shared", ["/mnt/shared", "s3://bucket/prefix"])
def test_a_child_process_gets_the_same_places(shared):
    made = settings(RIVERTWICE_SHARED=shared, RIVERTWICE_LEASES="s3://leases/x", RIVERTWICE_SAVEPOINTS="s3://p")
    assert Settings.from_env(made.to_env()) == made


def test_places_are_parsed_joined_and_named():
    assert parse_place("s3://bucket/a/") == "s3://bucket/a"
    assert below("s3://bucket", "a", "b") == "s3://bucket/a/b"
    assert below(Path("/a"), "b") == Path("/a/b")
    assert (name_of("s3://bucket/a/changelog"), name_of(Path("/a/ledger"))) == ("changelog", "ledger")
    with pytest.raises(ConfigError, match="is not a place"):
        parse_place("gcs://bucket")


def test_only_a_table_on_s3_gets_options_and_http_only_by_its_endpoint(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://s3.example.org")
    assert storage_options(Path("/a")) is None
    assert storage_options("s3://b/t")["aws_allow_http"] == "false"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:7070")
    assert storage_options("s3://b/t")["aws_allow_http"] == "true"


def test_files_of_a_folder_are_read_where_they_lie(tmp_path):
    assert local_files([str(tmp_path / "a.parquet")], tmp_path / "cache") == [str(tmp_path / "a.parquet")]
    assert not (tmp_path / "cache").exists()


def test_files_of_a_table_whose_folder_has_a_space_are_found(tmp_path):
    table = tmp_path / "a folder of Zoë's" / "t"
    Table(table, partition_by=["day"]).append(pa.table({"day": ["2026-01-01"], "n": [1]}))
    opened = Table(table).open()
    assert opened is not None
    (file,) = local_files(opened.uris(), tmp_path / "cache")
    assert Path(file).is_file()


@pytest.mark.parametrize("odd", list("%*?[]{}\\^|"))
def test_a_home_whose_name_spark_or_delta_would_read_otherwise_is_refused(tmp_path, odd):
    with pytest.raises(ConfigError, match="choose a folder without it"):
        Settings.from_env({"RIVERTWICE_HOME": str(tmp_path / f"a{odd}41b")})
    with pytest.raises(ConfigError, match="choose a folder without it"):
        parse_place(f"/srv/a{odd}41b")
