"""What rivertwice tells OpenLineage, held against OpenLineage's own JSON Schemas and its names of datasets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from openlineage.client.serde import Serde

from contracts.lineage_schema import dataset_findings, findings
from homes.project import FLIGHTS, make_project
from rivertwice.airflow.assets import stream_asset
from rivertwice.airflow.lineage import assertions_of, rows_of, task_lineage
from rivertwice.airflow.operators import SuperviseEpoch
from rivertwice.airflow.triggers import EPOCH_ENDED
from rivertwice.core.instants import utc_now
from rivertwice.definition.bundle import build_bundle
from rivertwice.definition.definition import load_definition
from rivertwice.engine.checked import check_bundle
from rivertwice.engine.checks import Examined

pytestmark = pytest.mark.filterwarnings("ignore")  # of Airflow's own imports
RUN: dict[str, Any] = {
    "run": "rc-000000000000-1",
    "counts": {"stream": {"AGREES": 10, "LATE": 2}, "served": {"AGREES": 11, "DEFECT": 1, "OPEN": 3}},
    "balance": {"total": {"unexplained": 0}},
    "gate": {"passed": False, "alerts": [{"severity": "critical", "kind": "defect", "message": "1 row"}]},
}


def datasets(lineage: Any) -> list[dict[str, Any]]:
    return [json.loads(Serde.to_json(each)) for each in (*lineage.inputs, *lineage.outputs)]


def test_datasets_have_the_names_and_columns_of_the_specification(tmp_path: Path) -> None:
    settings = make_project(tmp_path, {"flight_delays": FLIGHTS}, bootstrap="broker-1:9092,broker-2:9092")
    topic, served = datasets(task_lineage(settings, "flight_delays"))
    definition = load_definition(FLIGHTS)
    assert (topic["namespace"], topic["name"]) == ("kafka://broker-1:9092", definition.topics[0])
    assert (served["namespace"], served["name"]) == ("file", str(settings.pipeline("flight_delays").public_served))
    fields = {field["name"]: field["type"] for field in topic["facets"]["schema"]["fields"]}
    assert fields == definition.source[1].schema_
    assert [field["name"] for field in served["facets"]["schema"]["fields"]] == definition.result_columns
    assert [each for dataset in (topic, served) for each in dataset_findings(dataset)] == []


@pytest.mark.proves("howto-airflow.md#lineage")
def test_columns_name_the_fields_that_they_come_from(tmp_path: Path) -> None:
    settings = make_project(tmp_path, {"flight_delays": FLIGHTS}, bootstrap="broker-1:9092")
    columns = {
        "window_start": [("flights", "sched_dep", "TRANSFORMATION")],
        "origin": [("flights", "origin", "IDENTITY")],
        "flights": [],
        "": [("flights", "origin", "GROUP_BY"), ("flights", "window_start", "JOIN"), ("flights", "record", "FILTER")],
    }
    bundle = build_bundle(settings.definition_folder("flight_delays"))

    def examine(*_: object) -> Examined:
        return Examined(columns=columns)

    with patch("rivertwice.engine.checks.examine_definition", examine):
        check_bundle(settings.pipeline("flight_delays"), bundle, lambda: None, utc_now(), where="here")
    topic, served = datasets(task_lineage(settings, "flight_delays"))
    facet = served["facets"]["columnLineage"]

    def seen(fields: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
        assert {(each["namespace"], each["name"]) for each in fields} <= {(topic["namespace"], topic["name"])}
        return [(each["field"], way["type"], way["subtype"]) for each in fields for way in each["transformations"]]

    assert {name: seen(field["inputFields"]) for name, field in facet["fields"].items()} == {
        "window_start": [("sched_dep", "DIRECT", "TRANSFORMATION")], "origin": [("origin", "DIRECT", "IDENTITY")], "flights": [],
    }  # fmt: skip
    assert seen(facet["dataset"]) == [("origin", "INDIRECT", "GROUP_BY"), ("sched_dep", "INDIRECT", "JOIN")]
    assert dataset_findings(served) == []


@pytest.mark.proves("howto-airflow.md#lineage")
def test_a_watched_stream_tells_what_it_reads_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_project(tmp_path, {"flight_delays": FLIGHTS}, bootstrap="broker-1:9092")
    for name, value in {"PROJECT": settings.project, "HOME": settings.home, "BOOTSTRAP": settings.bootstrap}.items():
        monkeypatch.setenv(f"RIVERTWICE_{name}", str(value))
    monkeypatch.setattr("airflow.providers.openlineage.conf.is_disabled", lambda: False)
    watch = SuperviseEpoch(
        task_id="watch", pipeline="flight_delays", stream=stream_asset("flight_delays"), schedule="*/5 * * * *"
    )
    ended = {"status": EPOCH_ENDED, "seen": {}, "message": "the stream ran"}
    watch.finish({"asset_state_store": {watch.stream: MagicMock()}}, ended)
    lineage = watch.get_openlineage_facets_on_complete(None)
    assert datasets(lineage) == datasets(task_lineage(settings, "flight_delays"))
    assert len(datasets(lineage)) == 2


def test_a_table_on_s3_is_named_by_bucket_and_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rivertwice.storage.table import Table

    monkeypatch.setattr(Table, "open", lambda _: None)
    settings = make_project(tmp_path, {"flight_delays": FLIGHTS}, bootstrap="b:9092")
    _, served = datasets(task_lineage(replace(settings, shared="s3://lake/river"), "flight_delays"))
    assert served["namespace"] == "s3://lake"
    assert served["name"].startswith("river/pipelines/flight_delays/")


def test_verdicts_are_quality(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rivertwice import reconcile

    monkeypatch.setattr(reconcile, "reconcile_runs", lambda _: [RUN])
    settings = make_project(tmp_path, {"flight_delays": FLIGHTS}, bootstrap="b:9092")
    _, judged, _ = datasets(task_lineage(settings, "flight_delays", RUN["run"]))
    quality = judged["inputFacets"]
    failed = {
        each["name"]: each["severity"] for each in quality["dataQualityAssertions"]["assertions"] if not each["success"]
    }
    assert failed == {
        "no row of stream is LATE": "warn",
        "no row of served is DEFECT": "error",
        "gate: defect": "error",
    }
    assert quality["dataQualityMetrics"]["rowCount"] == rows_of(RUN) == 15
    assert dataset_findings(judged) == []


def test_a_clean_run_fails_no_assertion() -> None:
    clean = RUN | {"counts": {"served": {"AGREES": 3}}, "gate": {"passed": True, "alerts": []}}
    assert all(each.success for each in assertions_of(clean))


def test_the_check_itself_finds_what_is_wrong() -> None:
    assert findings({"namespace": "x"}, "OpenLineage", "Dataset")
    wrong = {"namespace": "n", "name": "x", "facets": {"schema": {"fields": [{"type": "int"}]}}, "outputFacets": {}}
    assert dataset_findings(wrong)
