"""Several sources: what goes together, what is hashed, what their topics say; one source stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from histories import two_sources as two
from rivertwice.core.errors import DefinitionError
from rivertwice.definition.definition import parse_files
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.definition.lint import LintLevel, contract_of, lint_definition
from rivertwice.engine.relations import metric_names
from rivertwice.engine.session import watermark_confs

ONLY_A: dict[str, Any] = {"b": None}


@pytest.fixture
def lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    two.lift(monkeypatch)


def test_several_sources_are_refused_until_their_windows_are_built() -> None:
    with pytest.raises(DefinitionError, match=r"sources are \['a', 'b'\]"):
        two.two_sources()


@pytest.mark.usefixtures("lifted")
def test_two_sources_of_one_topic_are_refused_with_a_remedy() -> None:
    with pytest.raises(DefinitionError, match=r"sources a and b both read topic 'topic-a'.*its own topic"):
        two.two_sources(sources={"b": two.source(two.A)})


def test_a_policy_without_a_choice_is_refused() -> None:
    with pytest.raises(DefinitionError, match="one stream, whose watermark needs no policy; remove it"):
        two.two_sources(sources=ONLY_A, watermark_policy="min")


@pytest.mark.usefixtures("lifted")
def test_topics_keep_the_order_of_the_definition_and_name_their_source() -> None:
    definition = two.two_sources(watermark_policy="max")
    assert definition.topics == [two.A, two.B]
    assert {topic: view for topic, (view, _) in definition.by_topic.items()} == {two.A: "a", two.B: "b"}
    assert watermark_confs(definition) == {"spark.sql.streaming.multipleWatermarkPolicy": "max"}
    assert metric_names(definition, "b") == ("rt_read_b", "rt_accepted_b")


def test_one_source_keeps_its_names_and_sets_no_policy() -> None:
    definition = two.two_sources(sources=ONLY_A)
    assert metric_names(definition, "a") == ("rt_read", "rt_accepted")
    assert watermark_confs(definition) == {}
    assert "watermark_policy" not in fingerprint_of(definition).components


@pytest.mark.usefixtures("lifted")
@pytest.mark.parametrize(
    ("changes", "component", "touches"),
    [
        ({"watermark_policy": "max"}, "watermark_policy", ("semantics",)),
        ({"sources": {"b": two.source(two.B, watermark="21 s")}}, "watermark", ("semantics",)),
        ({"sources": {"b": two.source("topic-c", watermark="20 s")}}, "topic", ("semantics",)),
        (
            {"sources": {"b": two.source(two.B, watermark="20 s", required=["k"])}},
            "required",
            ("semantics", "decode"),
        ),
    ],
)
def test_a_change_of_either_source_is_seen(changes: dict[str, Any], component: str, touches: tuple[str, ...]) -> None:
    before, after = fingerprint_of(two.two_sources()), fingerprint_of(two.two_sources(**changes))
    assert [(one.component, one.touches) for one in before.changes_to(after)] == [(component, touches)]


@pytest.mark.usefixtures("lifted")
def test_the_order_of_the_sources_means_nothing() -> None:
    document = two.document()
    document["sources"] = dict(reversed(document["sources"].items()))
    files = {**two.files(), "pipeline.yaml": yaml.safe_dump(document, sort_keys=False).encode()}
    turned = parse_files(files, two.NAME)
    assert turned.topics == [two.B, two.A]
    assert fingerprint_of(turned).hashes() == fingerprint_of(two.two_sources()).hashes()


@pytest.mark.usefixtures("lifted")
def test_the_lint_names_what_an_idle_source_does() -> None:
    for policy, word in (("min", "open"), ("max", "late")):
        definition = two.two_sources(watermark_policy=policy)
        (found,) = [one for one in lint_definition(definition, {}) if one.check == "idle source"]
        assert found.state == LintLevel.NOT_CHECKED
        assert word in found.told
    assert "a 5 seconds, b 20 seconds" in contract_of(definition)["watermark"]
    single = two.two_sources(sources=ONLY_A)
    assert not [one for one in lint_definition(single, {}) if one.check == "idle source"]
    assert contract_of(single)["watermark"].startswith("5 seconds behind")


@pytest.mark.usefixtures("lifted")
def test_headers_are_read_only_for_a_schema_id_in_them() -> None:
    (_, plain), *_ = two.two_sources(watermark_policy="max").by_topic.values()
    by_header = plain.model_copy(update={"schema_ids": ["a-1"]})
    assert [plain.reads_headers, by_header.reads_headers] == [bool(plain.schema_ids), True]
    assert not plain.model_copy(update={"schema_ids": []}).reads_headers
    assert not by_header.model_copy(update={"framing": "confluent"}).reads_headers
