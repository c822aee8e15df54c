"""Which sinks a pipeline has: those of the definition that serves. They belong to the pipeline, not to one of its versions."""

from __future__ import annotations

from collections.abc import Mapping

from rivertwice.config import Settings
from rivertwice.pipeline.definition import load_definition
from rivertwice.pipeline.delivery_model import Delivery


def sinks_of(settings: Settings, name: str) -> Mapping[str, Delivery]:
    """Return name to sink; a later version has none: while it serves, it fills those of the pipeline.

    Raises:
        DefinitionError: the definition that serves cannot be loaded.
    """
    home = settings.pipeline(name)
    if not home.is_first_version:
        return {}
    return load_definition(settings.definition_folder(home.serving_version)).deliver
