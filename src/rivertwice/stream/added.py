"""Partitions that a topic got after a stream began: each is read from its first record, and for a fold a key's order may end. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rivertwice.pipeline.definition import Definition


def added_since(began_with: Collection[str], ends: Mapping[int, int]) -> list[int]:
    """Return the partitions that a topic has now and did not have when the first timeline began.

    Args:
        began_with: partitions of the first timeline's genesis.
        ends: partition to its end now.
    """
    return sorted(ends.keys() - {int(partition) for partition in began_with})


def has_effect(definition: Definition) -> bool:
    """Say whether added partitions change results: those of a fold they do, unless it says that no order counts."""
    return definition.window.kind.lint.effect_of_partitions(definition) is not None


def describe_added(definition: Definition, topic: str, added: Sequence[int], since: str) -> str:
    """Return what added partitions mean for a pipeline's results, and what helps."""
    fact = f"topic {topic} got partitions {list(added)} since {since} began; each is read from its first record"
    lint = definition.window.kind.lint
    effect = lint.effect_of_partitions(definition)
    if effect is None:
        return f"{fact}; the results of {definition.name} do not depend on where a key's records are"
    remedy = lint.remedy_for_partitions(0)
    return (
        f"{fact}; {effect}; what helps: {remedy} (the topic that {definition.name} reads keeps its partitions); "
        f"`rivertwice reconcile {definition.name}` names the keys"
    )
