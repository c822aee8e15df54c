"""A claim that a sink cannot keep is refused when the definition is read; a kept one touches no fingerprint."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from homes.backfill import SQL, YAML
from homes.project import FLIGHTS, make_project, write_definition
from rivertwice.cli.main import cli
from rivertwice.core.errors import DefinitionError
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle, build_bundle, bundle_id, load_bundle
from rivertwice.definition.definition import Definition, load_definition
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.definition.lint import LintLevel, contract_of, lint_definition
from rivertwice.definition.upgrade import UpgradeKind, decide_upgrade


def load(folder: Path, deliver: str) -> Definition:
    target = write_definition(folder / FLIGHTS.name, FLIGHTS)
    (target / "pipeline.yaml").write_text((FLIGHTS / "pipeline.yaml").read_text() + f"\ndeliver: {deliver}\n")
    return load_definition(target)


KAFKA = "k: {to: kafka, topic: out, guarantee: exactly_once}"
POSTGRES = "p: {to: postgres, table: s.t, guarantee: effectively_once}"
PLAIN = "t: {to: kafka, topic: plain, transactions: false, guarantee: at_least_once}"


@pytest.mark.proves("howto-delivery.md#what-is-promised", "lab/docs/scenarios.md#scenarios", "guarantees.md#all-sinks")
@pytest.mark.parametrize(
    ("sink", "why"),
    [
        (
            "{to: webhook, url_env: H, guarantee: at_least_once}",
            "x: .*no sink `to: webhook`.*an HTTP sink of Kafka Connect",
        ),
        ("{to: email, guarantee: at_least_once}", "no sink `to: email`.*deliver to a topic"),
        (
            "{to: kafka, topic: out, transactions: false, guarantee: exactly_once}",
            "without transactions.*promised is at_least_once",
        ),
        (
            "{to: postgres, table: t, write: insert, guarantee: effectively_once}",
            "plain insert has no key.*upsert promises effectively_once",
        ),
        ("{to: postgres, table: t, guarantee: exactly_once}", "promised is effectively_once"),
        ("{to: iceberg, table: n.t, guarantee: exactly_once}", "promised is effectively_once"),
        ("{to: iceberg, table: t, guarantee: effectively_once}", r"write namespace\.table"),
        ("{to: iceberg, table: n.t, files: served, guarantee: exactly_once}", "promised is effectively_once"),
        ("{to: iceberg, table: n.t, files: ledger, guarantee: effectively_once}", "files"),
        (
            "{to: iceberg, table: n.t, files: served, rows: newest, guarantee: effectively_once}",
            "rows: newest needs files of its own",
        ),
        ("{to: iceberg, table: n.t, catalog: '../x', guarantee: effectively_once}", "catalog"),
        ("{to: kafka, topic: flights, guarantee: exactly_once}", "would feed itself"),
        ("{to: kafka, topic: rivertwice-positions, guarantee: exactly_once}", "rivertwice's own"),
        ("{to: postgres, table: 't; drop table x', guarantee: at_least_once}", "cannot name a table"),
        (
            "{to: postgres, table: t, dsn_env: 'postgresql://user:pw@host/', guarantee: at_least_once}",
            "names no environment variable",
        ),
        ("{to: kafka, topic: out, guarantee: exactly_once, rows: newest}", "which is for folds"),
        ("{to: kafka, topic: out}", "guarantee"),
    ],
)
def test_a_claim_or_a_place_that_cannot_be_is_refused_with_its_reason(tmp_path: Path, sink: str, why: str) -> None:
    with pytest.raises(DefinitionError, match=f"(?s){why}"):
        load(tmp_path, f"{{x: {sink}}}")


def test_two_sinks_do_not_share_a_place(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"deliver\.a and deliver\.b write to the same place"):
        load(
            tmp_path,
            "{a: {to: kafka, topic: x, guarantee: exactly_once}, b: {to: kafka, topic: x, guarantee: exactly_once}}",
        )


def test_a_weaker_claim_than_the_sinks_best_is_fine(tmp_path: Path) -> None:
    assert (
        load(tmp_path, "{a: {to: kafka, topic: x, guarantee: at_least_once}}").deliver["a"].promise[0] == "exactly_once"
    )


def test_sinks_touch_no_fingerprint(tmp_path: Path) -> None:
    with_sinks = load(tmp_path, f"{{{KAFKA}, {POSTGRES}, {PLAIN}}}")
    assert fingerprint_of(with_sinks).hashes() == fingerprint_of(load_definition(FLIGHTS)).hashes()


@pytest.mark.proves("guarantees.md#kafka-sink")
def test_the_contract_names_every_sink_and_lint_those_that_may_repeat(tmp_path: Path) -> None:
    def unsafe(definition: Definition) -> tuple[str, str]:
        one = next(one for one in lint_definition(definition, {}) if one.check == "replay into an unsafe sink")
        return one.state, one.told

    safe = load(tmp_path, f"{{{KAFKA}, {POSTGRES}}}")
    assert (
        "k (kafka topic out): exactly_once; p (postgres table s.t): effectively_once" in contract_of(safe)["boundary"]
    )
    assert unsafe(safe)[0] == LintLevel.HOLDS
    state, told = unsafe(load(tmp_path, f"{{{KAFKA}, {PLAIN}}}"))
    assert (state, "again to t (at_least_once)" in told) == (LintLevel.NOT_CHECKED, True)
    assert "nothing is promised beyond the tables" in contract_of(load_definition(FLIGHTS))["boundary"]


def settings_with(root: Path, deliver: str) -> Settings:
    """Return settings of a project whose pipeline `p` has sinks."""
    return make_project(root, {"p": {"pipeline.yaml": f"{YAML}\ndeliver: {deliver}\n", "transform.sql": SQL}})


WEBHOOK = "hook: {to: webhook, url_env: HOOK, suspect_after: 9, guarantee: at_least_once}"


@pytest.mark.proves("howto-delivery.md#what-is-promised")
@pytest.mark.parametrize("words", [["lint", "p", "--without-spark"], ["pipelines"]])
def test_a_definition_with_a_webhook_is_told_the_way_there(tmp_path: Path, words: list[str]) -> None:
    settings = settings_with(tmp_path, f"{{{WEBHOOK}}}")
    answer = CliRunner().invoke(cli, ["--output", "json", *words], env=settings.to_env())
    said = " ".join(answer.output.split())
    assert answer.exit_code in (1, 3)
    assert "p/pipeline.yaml: line" in said
    assert "deliver.hook: rivertwice has no sink `to: webhook`" in said
    assert "deliver to a topic (`to: kafka`) and let a connector send its records" in said


def test_a_stored_definition_with_a_webhook_still_loads_and_upgrades(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, f"{{{KAFKA}}}")
    new = build_bundle(settings.definitions / "p")
    text = new.files["pipeline.yaml"].decode().replace(f"{{{KAFKA}}}", f"{{{KAFKA}, {WEBHOOK}}}")
    files = {**new.files, "pipeline.yaml": text.encode()}
    stored = Bundle(bundle_id(files), files, new.fingerprint, new.definition)
    stored.save(tmp_path / "bundles")
    old = load_bundle(tmp_path / "bundles", stored.id)
    assert (list(old.definition.deliver), old.fingerprint.hashes()) == (["k"], new.fingerprint.hashes())
    assert decide_upgrade(old, new, old.fingerprint.hashes()).way == UpgradeKind.SAME
    stored.write_folder(settings.frozen_definitions / "p")
    assert list(load_definition(settings.definition_folder("p")).deliver) == ["k"]
