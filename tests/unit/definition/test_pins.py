"""What a definition pins: read with it, part of its bundle and fingerprint, and refused where it could not decode."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from homes.orders import ORDERS, REGISTERED, copy_orders, orders
from homes.project import FLIGHTS, replace_text
from rivertwice.core.errors import DefinitionError, RequestError
from rivertwice.definition.bundle import build_bundle, load_bundle
from rivertwice.definition.definition import load_definition
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.definition.pinned_files import read_pinned
from rivertwice.definition.schema_folder import FolderRegistry
from rivertwice.definition.schema_refresh import plan_refresh
from rivertwice.definition.schema_registry import SchemaVersion

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "savepoint-v1" / "home" / "pipelines"
VERSIONS = FolderRegistry(REGISTERED).versions("orders-value")


def changed(text: str, field: int, **props: object) -> str:
    value = json.loads(text)
    value["fields"][field] |= props
    return json.dumps(value)


@pytest.mark.proves("howto-schemas.md#schemas-several-versions-of-a-record-in-one-topic")
def test_a_bundle_holds_the_schemas_and_decodes_by_them_for_ever(tmp_path: Path) -> None:
    folder = copy_orders(tmp_path / "pipelines")
    bundle = build_bundle(folder)
    bundle.save(tmp_path / "bundles")
    for path in folder.glob("schemas/*"):
        path.unlink()
    again = load_bundle(tmp_path / "bundles", bundle.id)
    assert again.fingerprint == bundle.fingerprint
    assert sorted(again.definition.source[1].pins.writers) == [1, 2, 3]


@pytest.mark.proves("howto-schemas.md#a-new-version-while-a-stream-runs")
def test_another_writer_changes_decode_and_results_but_no_state(tmp_path: Path) -> None:
    folder = copy_orders(tmp_path)
    before = fingerprint_of(load_definition(folder))
    (folder / "schemas" / "orders-3.avsc").unlink()
    after = fingerprint_of(load_definition(folder))
    assert [change.component for change in before.changes_to(after)] == ["pinned"]
    assert (before.state == after.state, before.decode == after.decode, before.semantics == after.semantics) == (
        True,
        False,
        False,
    )


def test_definitions_without_schemas_hash_as_they_always_did() -> None:
    for record in GOLDEN.glob("*/timelines/*/timeline.json"):
        line = json.loads(record.read_text())
        assert load_bundle(record.parents[2] / "bundles", line["bundle"]).fingerprint.hashes() == line["fingerprint"]
    components = fingerprint_of(load_definition(FLIGHTS)).components
    assert not {"framing", "pinned"} & set(components)


# what is done to a copy, and words of the refusal
BROKEN = {
    "no reader": (lambda f: (f / "schemas/orders.avsc").unlink(), "orders.avsc does not exist"),
    "no writer": (lambda f: [(f / f"schemas/orders-{n}.avsc").unlink() for n in (1, 2, 3)], "orders-ID.avsc does not exist"),
    "another source's": (lambda f: (f / "schemas/orders-1.avsc").rename(f / "schemas/carts-1.avsc"), "source 'carts'"),
    "a misnamed file": (lambda f: (f / "schemas/orders-1.avsc").rename(f / "schemas/orders-01.avsc"), "is not a valid name"),
    "an id beyond four bytes": (lambda f: (f / "schemas/orders-1.avsc").rename(f / "schemas/orders-9999999999.avsc"), "is not a valid name"),
    "a field the reader lacks": (lambda f: replace_text(f / "pipeline.yaml", "      note: string", "      gift: string"), "no field 'gift'"),
    "another type than the reader's": (lambda f: replace_text(f / "pipeline.yaml", "decimal(10,2)", "decimal(10,3)"), "decimal\\(10,2\\)"),
    "an unreadable writer": (
        lambda f: (f / "schemas/orders-3.avsc").write_text(changed(VERSIONS[2].text, 2, type="string")),
        "meaning changed at /amount",
    ),
    "ids in the yaml": (lambda f: replace_text(f / "pipeline.yaml", "framing: confluent", "framing: confluent\n    schema_ids: ['1']"), "remove both"),
    "writers without framing": (lambda f: replace_text(f / "pipeline.yaml", "framing: confluent", "framing: none"), "framing is 'none'"),
    "schemas beside JSON": (lambda f: replace_text(f / "pipeline.yaml", "format: avro", "format: json"), "format is not Avro"),
    "a link": (lambda f: ((f / "schemas/orders-1.avsc").unlink(), (f / "schemas/orders-1.avsc").symlink_to("/etc/hosts")), "is a link"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BROKEN))
def test_what_could_not_decode_is_refused_when_the_definition_is_read(tmp_path: Path, name: str) -> None:
    folder = copy_orders(tmp_path)
    harm, words = BROKEN[name]
    harm(folder)
    with pytest.raises(DefinitionError, match=words):
        load_definition(folder)


def plan(versions: list[SchemaVersion], pinned: dict[str, bytes], reader: int | None = None):
    view, source = orders().source
    return plan_refresh("orders-value", view, source.schema_, pinned, versions, framed=True, reader_version=reader)


def test_a_refresh_of_what_is_pinned_writes_nothing() -> None:
    found = plan(VERSIONS, read_pinned(ORDERS))
    assert (found.write, found.known, found.new, found.refused, found.gone) == ({}, (1, 2, 3), (), (), ())


def test_a_first_refresh_reads_by_the_newest_version_that_has_the_fields() -> None:
    found = plan(VERSIONS, {})
    assert sorted(found.write) == [f"schemas/orders{end}.avsc" for end in ("-1", "-2", "-3", "")]
    assert found.write["schemas/orders.avsc"] == found.write["schemas/orders-2.avsc"]


def test_an_incompatible_version_is_named_and_not_pinned() -> None:
    fourth = SchemaVersion("orders-value", 4, 9, "avro", changed(VERSIONS[2].text, 2, type="string"))
    fifth = SchemaVersion("orders-value", 5, 10, "avro", changed(VERSIONS[2].text, 3, default="CHF"))
    found = plan([*VERSIONS, fourth, fifth], read_pinned(ORDERS))
    assert [(each.version, each.id) for each in found.refused] == [(4, 9)]
    assert "meaning changed at /amount" in found.refused[0].because
    assert (sorted(found.write), found.new) == (["schemas/orders-10.avsc"], (10,))


def test_an_id_that_means_another_schema_now_is_refused() -> None:
    moved = SchemaVersion("orders-value", 1, 1, "avro", VERSIONS[1].text)
    found = plan([moved, *VERSIONS[1:]], read_pinned(ORDERS))
    assert [(each.id, "two registries" in each.because) for each in found.refused] == [(1, True)]


def test_ids_the_registry_forgot_stay_pinned() -> None:
    assert plan(VERSIONS[1:], read_pinned(ORDERS)).gone == (1,)


@pytest.mark.parametrize(("versions", "reader"), [([], None), (VERSIONS[:1], None), (VERSIONS, 7), (VERSIONS, 1)])
def test_no_version_that_can_be_read_by_is_said(versions: list[SchemaVersion], reader: int | None) -> None:
    with pytest.raises(RequestError):
        plan(versions, {}, reader)
