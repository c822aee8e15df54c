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


def depends_on_partitions(definition: Definition) -> bool:
    """Say whether rows depend on which partition a key's records are in: those of a fold do, unless it says that no order counts."""
    return definition.fold_py is not None and definition.order != "any"


def describe_added(definition: Definition, topic: str, added: Sequence[int], since: str) -> str:
    """Return what added partitions mean for a pipeline's results, and what helps."""
    fact = f"topic {topic} got partitions {list(added)} since {since} began; each is read from its first record"
    if not depends_on_partitions(definition):
        return f"{fact}; the results of {definition.name} do not depend on where a key's records are"
    by = ", ".join(definition.by)
    remedy = definition.window.kind.lint.remedy_for_partitions(0)
    return (
        f"{fact}; producers that hash keys now send some of them to the new partitions, so for these the order of a {by} ends: a row may "
        f"be made of events in another order, and a reconcile calls it NOT_COMPARABLE; what helps: {remedy} (the topic that "
        f"{definition.name} reads keeps its partitions); `rivertwice reconcile {definition.name}` names the keys"
    )
