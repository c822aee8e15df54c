"""Lineage of a task, for OpenLineage: the topics that it read, what its pipeline serves, and a reconcile's verdicts as quality.

Airflow's provider for OpenLineage asks for it, so its classes are only imported then; without the provider this is never called. Which
fields a column comes from is known to Spark's analysed plan; the checks of a definition store it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rivertwice.core import Place, Settings, is_remote
from rivertwice.definition import RECORD
from rivertwice.timeline import Verdict

if TYPE_CHECKING:
    from openlineage.client.facet_v2 import DatasetFacet, data_quality_assertions_dataset

    from rivertwice.definition import Bundle, Definition, Source

SEVERITIES = {Verdict.DEFECT: "error", Verdict.NOT_COMPARABLE: "warn", Verdict.LATE: "warn"}
"""A row with such a verdict fails an assertion: only a defect keeps the gate from passing."""
_OF_SUITES = "gate"


def assertions_of(run: Mapping[str, Any]) -> list[data_quality_assertions_dataset.Assertion]:
    """Return what a reconcile asserted: per pair and verdict that there is no such row; that all records are explained; the gate. Pure.

    Args:
        run: as `reconcile_runs` gives it.
    """
    from openlineage.client.facet_v2 import data_quality_assertions_dataset as assertions

    def none_of(number: int, name: str, severity: str) -> assertions.Assertion:
        return assertions.Assertion(
            "custom", not number, severity=severity, name=name, expected="0", actual=str(number)
        )

    balance = run["balance"]
    found = [
        none_of(counts.get(verdict, 0), f"no row of {pair} is {verdict}", severity)
        for pair, counts in run["counts"].items()
        for verdict, severity in SEVERITIES.items()
    ]
    found.append(none_of(balance.get("total", balance).get("unexplained", 0), "every record is explained", "error"))
    for alert in run["gate"]["alerts"]:
        severity, name = "error" if alert["severity"] == "critical" else "warn", f"{_OF_SUITES}: {alert['kind']}"
        found.append(
            assertions.Assertion("custom", success=False, severity=severity, name=name, description=alert["message"])
        )
    return found


def rows_of(run: Mapping[str, Any]) -> int:
    """Return the number of served rows that a reconcile judged; those of the stream if nothing is served. Pure."""
    counts = run["counts"].get("served") or run["counts"].get("stream") or {}
    return int(sum(counts.values()))


def task_lineage(settings: Settings, pipeline: str, reconcile: str | None = None) -> Any:
    """Return the lineage of a task as the provider's `OperatorLineage`.

    Args:
        pipeline: its name, or that of a version.
        reconcile: the run that the task stored; its verdicts are the quality of what is served.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage

    from rivertwice.definition import build_bundle

    bundle = build_bundle(settings.definition_folder(pipeline))
    definition = bundle.definition
    inputs, outputs = _topics(settings, definition), [_served(settings, bundle)]
    if reconcile is not None:
        inputs.append(_judged(settings, definition, reconcile))
    return OperatorLineage(inputs=inputs, outputs=outputs)


def _topics(settings: Settings, definition: Definition) -> list[Any]:
    from openlineage.client.event_v2 import InputDataset

    return [
        InputDataset(*_topic_name(settings, topic), facets={"schema": _schema(definition.by_topic[topic][1].schema_)})
        for topic in dict.fromkeys(source.topic for source in definition.sources.values())
    ]


def _served(settings: Settings, bundle: Bundle) -> Any:
    from openlineage.client.event_v2 import OutputDataset

    definition = bundle.definition
    place = settings.pipeline(definition.name).public_served
    return OutputDataset(*_name_of(place), facets=_table_facets(place, definition) | _column_facet(settings, bundle))


def _column_facet(settings: Settings, bundle: Bundle) -> dict[str, DatasetFacet]:
    """Return the fields that each column of the result comes from; nothing if the newest checks did not see this definition."""
    from openlineage.client.facet_v2 import column_lineage_dataset as columns

    from rivertwice.engine import read_verdict

    definition = bundle.definition
    verdict = read_verdict(settings.pipeline(definition.name), bundle.id)
    if verdict is None or not verdict.columns:
        return {}
    topics = {view: _topic_name(settings, source.topic) for view, source in definition.sources.items()}

    def fields_of(column: str, kind: str) -> list[columns.InputField]:
        found: dict[tuple[str, str], list[columns.Transformation]] = {}
        for view, field, how in verdict.columns[column]:
            origin = _field_behind(definition.sources[view], field)
            if origin is not None:
                found.setdefault((view, origin), []).append(columns.Transformation(kind, how))
        return [columns.InputField(*topics[view], field, ways) for (view, field), ways in found.items()]

    named = {name: columns.Fields(fields_of(name, "DIRECT")) for name in verdict.columns if name}
    return {"columnLineage": columns.ColumnLineageDatasetFacet(named, fields_of("", "INDIRECT"))}


def _field_behind(source: Source, column: str) -> str | None:
    """Return the field of a record behind a column that a view shows to the SQL; None if there is none, as behind its address."""
    if column in source.schema_:
        return column
    return None if column == RECORD else source.event_time  # the ends of its window, or of its time as a row of a table


def _topic_name(settings: Settings, topic: str) -> tuple[str, str]:
    from openlineage.client.naming.dataset import Kafka

    host, _, port = settings.bootstrap_servers().split(",")[0].strip().rpartition(":")
    name = Kafka(host, port, topic)
    return name.get_namespace(), name.get_name()


def _judged(settings: Settings, definition: Definition, reconcile: str) -> Any:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import data_quality_assertions_dataset as assertions
    from openlineage.client.facet_v2 import data_quality_metrics_input_dataset as metrics

    from rivertwice.reconcile import reconcile_runs

    home = settings.pipeline(definition.name)
    run = next((each for each in reconcile_runs(home) if each["run"] == reconcile), None)
    quality: dict[str, Any] = {}
    if run is not None:
        quality = {
            "dataQualityAssertions": assertions.DataQualityAssertionsDatasetFacet(assertions=assertions_of(run)),
            "dataQualityMetrics": metrics.DataQualityMetricsInputDatasetFacet(columnMetrics={}, rowCount=rows_of(run)),
        }
    facets = _table_facets(home.public_served, definition)
    return InputDataset(*_name_of(home.public_served), facets=facets, inputFacets=quality)


def _table_facets(place: Place, definition: Definition) -> dict[str, DatasetFacet]:
    """Return storage and columns of a table; before the first build, the names of the columns that it will have."""
    from openlineage.client.facet_v2 import storage_dataset

    from rivertwice.storage import Table

    table = Table(place).open()
    if table is None:
        columns: dict[str, str | None] = dict.fromkeys(definition.result_columns)
    else:
        columns = {
            field.name: _type_of(field.type) for field in table.handle.schema().fields if not field.name.startswith("_")
        }
    storage = storage_dataset.StorageDatasetFacet(storageLayer="delta", fileFormat="parquet")
    return {"schema": _schema(columns), "storage": storage}


def _type_of(kind: Any) -> str:
    return str(getattr(kind, "type", kind))


def _schema(columns: Mapping[str, str | None]) -> Any:
    from openlineage.client.facet_v2 import schema_dataset

    fields = [
        schema_dataset.SchemaDatasetFacetFields(name=name, type=kind, ordinal_position=number)
        for number, (name, kind) in enumerate(columns.items(), 1)
    ]
    return schema_dataset.SchemaDatasetFacet(fields=fields)


def _name_of(place: Place) -> tuple[str, str]:
    from openlineage.client.naming.dataset import S3, LocalFileSystem

    if not is_remote(place):
        local = LocalFileSystem(str(place))
        return local.get_namespace(), local.get_name()
    scheme, _, address = str(place).partition("://")
    bucket, _, key = address.partition("/")
    if scheme != "s3":
        return f"{scheme}://{bucket}", key
    remote = S3(bucket, key)
    return remote.get_namespace(), remote.get_name()
