"""A stored bundle that was altered: a reconcile judges by the project's files if they are the very same, else it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from homes.torn import make_home
from rivertwice.core.errors import DefinitionError
from rivertwice.reconcile.observe import observe_head


@pytest.mark.proves("howto-correct.md#what-the-log-cannot-show", "guarantees.md#verdicts")
def test_the_projects_files_replace_an_altered_bundle_only_if_the_same(tmp_path: Path) -> None:
    settings, home, bundle = make_home(tmp_path, batches=1)
    assert list(observe_head(home, settings.definitions).contradicted) == []
    stored = Path(str(home.bundles)) / bundle.id / "transform.sql"
    stored.write_bytes(stored.read_bytes() + b" ")
    seen = observe_head(home, settings.definitions)
    assert seen.newest.definition == bundle.definition
    (finding,) = seen.contradicted
    assert (finding.kind, "was altered" in finding.message) == ("bundle", True)
    own = settings.definitions / "p" / "pipeline.yaml"
    own.write_text(own.read_text().replace("watermark: 1 hour", "watermark: 2 hours"))
    for definitions in (settings.definitions, None):
        with pytest.raises(DefinitionError, match="was altered"):
            observe_head(home, definitions)
