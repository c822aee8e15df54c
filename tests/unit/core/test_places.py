"""Which addresses are places, and that no address becomes a local folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivertwice.core.errors import ConfigError
from rivertwice.core.homes import below, is_remote, parse_place
from rivertwice.core.settings import Settings

ADDRESSES = [
    "s3://bucket",
    "s3://bucket/a/b",
    "gs://bucket",
    "gs://bucket/a/b",
    "az://container/a",
    "abfss://container@account.dfs.core.windows.net",
    "abfss://container@account.dfs.core.windows.net/a/b",
]
OTHERS = [
    "s3://",
    "gs://",
    "gs:///a",
    "s3a://bucket/a",
    "gcs://bucket/a",
    "abfss://account.dfs.core.windows.net/container",
    "abfss://container@account/a",
    "abfs://container@account.dfs.core.windows.net/a",
    "wasbs://container@account.blob.core.windows.net/a",
    "hdfs://name/a",
    "file:///a",
]


@pytest.mark.parametrize("text", ADDRESSES)
def test_an_address_in_an_object_store_is_a_place(text: str) -> None:
    assert parse_place(f"{text}/") == text
    assert is_remote(text)
    assert below(text, "pipelines", "p") == f"{text}/pipelines/p"


@pytest.mark.parametrize("text", OTHERS)
@pytest.mark.parametrize("setting", ["RIVERTWICE_SHARED", "RIVERTWICE_SAVEPOINTS", "RIVERTWICE_LEASES"])
def test_another_address_is_refused_with_the_ways_to_write_one(tmp_path: Path, setting: str, text: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"{setting} is .* which is not a place; write a folder, s3://.* gs://.* abfss://"
    ):
        Settings.from_env({"RIVERTWICE_PROJECT": str(tmp_path), setting: text})


@pytest.mark.parametrize("text", [*ADDRESSES, *OTHERS[3:], "gs:/bucket/a"])
@pytest.mark.parametrize("name", ["PROJECT", "HOME", "ALERTS", "DOWNLOADS"])
def test_what_must_be_on_this_host_is_no_address(tmp_path: Path, name: str, text: str) -> None:
    given = {"RIVERTWICE_PROJECT": str(tmp_path), f"RIVERTWICE_{name}": text}
    with pytest.raises(ConfigError, match=f"RIVERTWICE_{name} is .* which is an address.*RIVERTWICE_SHARED"):
        Settings.from_env(given)


def test_a_home_of_the_projects_file_is_no_address_either(tmp_path: Path) -> None:
    (tmp_path / "rivertwice.yaml").write_text("home: gs://bucket/home\n")
    with pytest.raises(ConfigError, match=r"RIVERTWICE_HOME is .* which is an address"):
        Settings.from_env({"RIVERTWICE_PROJECT": str(tmp_path)})
    (tmp_path / "rivertwice.yaml").write_text("shared: az://container/shared\n")
    assert Settings.from_env({"RIVERTWICE_PROJECT": str(tmp_path)}).shared == "az://container/shared"
