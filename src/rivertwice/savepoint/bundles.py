"""The definitions that savepoints and recorded batches were made by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rivertwice.config import PipelineHome, Settings
from rivertwice.pipeline.bundle import build_bundle, load_bundle, load_bundle_definition
from rivertwice.pipeline.fold_buckets import with_buckets
from rivertwice.pipeline.model import Definition
from rivertwice.savepoint.manifest import Manifest
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import load_timeline


def current_fingerprint(settings: Settings, pipeline: str) -> dict[str, str]:
    """Return the hashes of a pipeline's definition as it is in the project now."""
    return build_bundle(settings.definition_folder(pipeline)).fingerprint.hashes()


def load_state_definition(home: PipelineHome, manifest: Manifest) -> Definition:
    """Return the definition whose state a savepoint holds, from its bundle, with what its timeline froze of the state's layout."""
    frozen = load_timeline(home, manifest.timeline).fold_buckets
    return with_buckets(load_bundle_definition(home.bundles, manifest.bundle), frozen)


def equivalent_bundles(home: PipelineHome, manifest: Manifest, rows: Sequence[LedgerRow]) -> set[str]:
    """Return the savepoint's bundle and those bundles of `rows` that have its fingerprint."""
    ids = {row.bundle for row in rows if row.batch > manifest.batch} - {manifest.bundle}
    same: Mapping[str, str] = manifest.fingerprint
    fitting = {name for name in ids if load_bundle(home.bundles, name).fingerprint.hashes() == same}
    return fitting | {manifest.bundle}
