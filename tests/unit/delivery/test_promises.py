"""A claim that a sink cannot keep is refused when the definition is read; a kept one touches no fingerprint."""

from __future__ import annotations

from pathlib import Path

import pytest

from homes.project import FLIGHTS, write_definition
from rivertwice.core.errors import DefinitionError
from rivertwice.definition.definition import Definition, load_definition
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.definition.lint import HOLDS, NOT_CHECKED, contract_of, lint_definition


def load(folder: Path, deliver: str) -> Definition:
    target = write_definition(folder / FLIGHTS.name, FLIGHTS)
    (target / "pipeline.yaml").write_text((FLIGHTS / "pipeline.yaml").read_text() + f"\ndeliver: {deliver}\n")
    return load_definition(target)


KAFKA = "k: {to: kafka, topic: out, guarantee: exactly_once}"
POSTGRES = "p: {to: postgres, table: s.t, guarantee: effectively_once}"
HOOK = "h: {to: webhook, url_env: HOOK, guarantee: at_least_once}"


@pytest.mark.proves("howto-delivery.md#what-is-promised", "scenarios.md#scenarios", "guarantees.md#all-sinks")
@pytest.mark.parametrize(
    ("sink", "why"),
    [
        ("{to: webhook, url_env: H, guarantee: exactly_once}", "answer can be lost.*promised is at_least_once"),
        ("{to: webhook, url_env: H, guarantee: effectively_once}", "promised is at_least_once"),
        ("{to: email, guarantee: exactly_once}", "cannot be recognised as sent.*promised is at_least_once"),
        ("{to: email, guarantee: at_least_once}", "sends no e-mail; deliver to a webhook"),
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
        ("{to: iceberg, table: n.t, catalog: '../x', guarantee: effectively_once}", "catalog"),
        ("{to: kafka, topic: flights, guarantee: exactly_once}", "would feed itself"),
        ("{to: kafka, topic: rivertwice-positions, guarantee: exactly_once}", "rivertwice's own"),
        ("{to: postgres, table: 't; drop table x', guarantee: at_least_once}", "cannot name a table"),
        ("{to: webhook, url_env: 'https://user:pw@host/', guarantee: at_least_once}", "names no environment variable"),
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
    with_sinks = load(tmp_path, f"{{{KAFKA}, {POSTGRES}, {HOOK}}}")
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
    assert unsafe(safe)[0] == HOLDS
    state, told = unsafe(load(tmp_path, f"{{{KAFKA}, {HOOK}}}"))
    assert (state, "again to h (at_least_once)" in told) == (NOT_CHECKED, True)
    assert "nothing is promised beyond the tables" in contract_of(load_definition(FLIGHTS))["boundary"]
