"""OpenLineage's own JSON Schemas, which ship with these tests: an event, its datasets and the facets that rivertwice gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

FOLDER = Path(__file__).with_name("openlineage")
DOCUMENTS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
REGISTRY: Registry[Any] = Registry().with_resources(
    (document["$id"], Resource.from_contents(document)) for document in DOCUMENTS.values()
)
FACETS = {
    "schema": "SchemaDatasetFacet",
    "storage": "StorageDatasetFacet",
    "columnLineage": "ColumnLineageDatasetFacet",
    "dataQualityAssertions": "DataQualityAssertionsDatasetFacet",
    "dataQualityMetrics": "DataQualityMetricsInputDatasetFacet",
}


def findings(value: Any, document: str, part: str | None = None) -> list[str]:
    """Return what a schema, or one of its definitions, says against a value."""
    reference = DOCUMENTS[document]["$id"] + (f"#/$defs/{part}" if part else "")
    validator = Draft202012Validator(
        {"$ref": reference}, registry=REGISTRY, format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def dataset_findings(dataset: Mapping[str, Any]) -> list[str]:
    """Return what the schemas say against a dataset and each facet of it."""
    own = "InputDataset" if "inputFacets" in dataset else "OutputDataset"
    found = findings(dataset, "OpenLineage", own)
    for name, facet in {**dataset.get("facets", {}), **dataset.get("inputFacets", {})}.items():
        found += [f"{name}: {each}" for each in findings({name: facet}, FACETS[name])]
    return found
