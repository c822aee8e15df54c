"""A version where all that outlives a host is on S3: begun, streamed, saved, compared, switched and back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from homes.project import REPOSITORY, TO_RUN, make_project, replace_text
from lab.faults.s3_server import s3_server, why_not
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.timeline.served import export_sha256
from rivertwice.versions.serve import read_switches
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm
from streams.amounts import NAME, SQL, YAML, amounts, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
OLD, NEW = NAME, f"{NAME}@v2"
BUCKET, SHARED = "rivertwice", "shared"
TABLES = {"changelog", "ledger", "sequence", "served", "verdicts", "seals"}


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An S3 server for this test, to which this process's environment points."""
    if reason := why_not(REPOSITORY / ".build", tmp_path / "probe"):
        pytest.skip(reason)
    with s3_server(REPOSITORY / ".build", tmp_path / "s3") as server:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket=BUCKET)
        yield client


def stored(bucket: Any, name: str) -> set[str]:
    """Return what a pipeline has on S3: tables by their names, and other folders."""
    prefix = f"{SHARED}/pipelines/{name}/"
    pages = bucket.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    parts = [entry["Key"].removeprefix(prefix).split("/") for page in pages for entry in page.get("Contents", [])]
    return {part[1] if part[0] == "tables" else part[0] for part in parts}


def test_a_version_on_s3_is_begun_switched_and_back(tmp_path: Path, broker: BrokerInfo, bucket: Any) -> None:
    topic, log = f"t-{uuid.uuid4().hex[:12]}", tmp_path / "driver.log"
    files = {"pipeline.yaml": YAML.replace("TOPIC", topic), "transform.sql": SQL}
    shared = f"s3://{BUCKET}/{SHARED}"
    settings = make_project(tmp_path, {OLD: files}, links=TO_RUN, bootstrap=broker.bootstrap, shared=shared)
    ensure_topic(settings, topic, 1)
    records = amounts()
    send(settings, topic, records[:500])
    run_driver_warm(settings, OLD, log)

    folder = settings.definitions / OLD
    replace_text(folder / "transform.sql", "sum(delta)", "sum(abs(delta))")
    (folder / "changes").mkdir()
    (folder / "changes" / "v2.yaml").write_text(
        "reason: amounts that go out counted as negative\n"
        "rows: [{columns: [total], where: new.total > old.total, reason: the sum is of absolute amounts}]\n"
    )
    begin = ("upgrade", OLD, "--new-version", "--yes")
    assert "no agent is running" in invoke_warm(settings, *begin).output
    run_driver_warm(settings, NEW, log)
    assert run_command_warm(settings, *begin)["load"]["published"]
    send(settings, topic, records[500:])
    for name in (OLD, NEW):
        run_driver_warm(settings, name, log)
        run_command_warm(settings, "savepoint", "take", name)
        run_command_warm(settings, "admin", "rebuild", name)
        assert run_command_warm(settings, "reconcile", name)["gate"]["passed"]

    homes = {name: settings.pipeline(name) for name in (OLD, NEW)}
    assert stored(bucket, OLD) > TABLES | {"savepoints", "versions"}
    assert stored(bucket, NEW) > TABLES | {"savepoints"}
    for home in homes.values():
        assert not (home.root / "tables").exists()
        (savepoint,) = list_savepoints(home)
        savepoint.verify_files()
    sha256 = {name: export_sha256(home) for name, home in homes.items()}
    assert sha256[OLD] != sha256[NEW]

    done = run_command_warm(settings, "version", "serve", NEW, "--yes")
    assert (done["before"], done["changed"]) == (OLD, True)
    assert homes[OLD].serving_version == NEW
    assert "served" not in stored(bucket, NEW)
    run_command_warm(settings, "admin", "rebuild", OLD)
    assert "served_beside" in stored(bucket, OLD)
    assert {name: export_sha256(home) for name, home in homes.items()} == sha256

    back = run_command_warm(settings, "version", "serve", OLD, "--yes")
    assert (back["before"], back["changed"]) == (NEW, True)
    assert "served_beside" not in stored(bucket, OLD)
    run_command_warm(settings, "admin", "rebuild", NEW)
    assert {name: export_sha256(home) for name, home in homes.items()} == sha256
    assert [record["to"] for record in read_switches(homes[OLD])] == [NEW, OLD]
    run_command_warm(settings, "version", "drop", NEW, "--yes")
    assert stored(bucket, NEW) == set()
    assert export_sha256(homes[OLD]) == sha256[OLD]
