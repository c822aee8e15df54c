"""The published JSON Schema of `pipeline.yaml`, for editors."""

from __future__ import annotations

import json

from rivertwice.definition.model import DefinitionFile


def schema_of_definitions() -> str:
    """Return the schema as `docs/pipeline.schema.json` holds it."""
    schema = DefinitionFile.model_json_schema(by_alias=True)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "rivertwice pipeline"}
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
