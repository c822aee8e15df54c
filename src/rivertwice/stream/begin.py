"""Conditions for the start of a stream: its timeline, its fingerprint, its log. No Spark here."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from rivertwice.core import FingerprintError, LogGapError, PipelineHome, RequestError, Settings
from rivertwice.definition import Bundle, CheckReport, Definition, build_bundle
from rivertwice.engine import buckets_at_genesis, check_bundle, read_verdict
from rivertwice.log import StoredOffsets, encode_ends, kafka
from rivertwice.storage import Table
from rivertwice.stream.loaded import begin_after_load
from rivertwice.stream.seal import seal_timeline, stream_app
from rivertwice.timeline import (
    FirstLoad,
    StreamLoad,
    Timeline,
    bundles_of,
    create_timeline,
    move_head,
    path_of,
    read_sequence,
    select_head,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = "t1"


@dataclass(frozen=True)
class StartPlan:
    """What a start must do before its timeline can run.

    Attributes:
        create: its record does not exist yet.
        move: the head is not this timeline yet.
    """

    timeline: str
    create: bool
    move: bool


def plan_start(head: str | None, timelines: Collection[str]) -> StartPlan:
    """Return which timeline a start runs and what it lacks; only at a first start it lacks something."""
    if head is not None:
        return StartPlan(head, create=False, move=False)
    return StartPlan(FIRST, create=FIRST not in timelines, move=True)


def begin_again(settings: Settings, home: PipelineHome, bundle: Bundle, now: datetime) -> str | None:
    """Return a new timeline, now the head, for a changed definition of a stream that never committed a batch; else None.

    There is no state that could be continued, and no result that could contradict, so the stream begins again where it began.
    Repeated after an interruption, it is the same timeline. To be called by the owner of the lease: no driver runs.
    """
    entries = read_sequence(home)
    name = select_head(entries)
    if name is None or FirstLoad.load(home) is not None or StreamLoad.load(home) is not None:
        return None
    line, hashes = Timeline.load(home, name), bundle.fingerprint.hashes()
    if line.fingerprint == hashes or line.parent is not None or has_batch(home, line):
        return None
    topic_ids = {topic: kafka.topic_id(settings, topic) for topic in bundle.definition.topics}
    others = (Timeline.load(home, other) for other in Timeline.names(home) if other != name)
    begun = next((o for o in others if o.bundle == bundle.id and o.parent is None and not has_batch(home, o)), None)
    if begun is None:
        begun = replace(
            line,
            timeline=Timeline.next_name(home),
            genesis=line.genesis if topic_ids == line.topic_ids else _oldest_in_kafka(settings, topic_ids),
            bundle=bundle.id,
            fingerprint=hashes,
            topic_ids=topic_ids,
            created_at=now,
            fold_buckets=buckets_at_genesis(bundle.definition),
        )
        create_timeline(home, begun)
    seal_timeline(home, line.pipeline, name)
    reason = f"the definition changed before {name} committed a batch"
    move_head(home, begun.timeline, reason=reason, expected_seq=entries[-1].seq, now=now)
    return begun.timeline


def has_batch(home: PipelineHome, line: Timeline) -> bool:
    """Say whether a batch of a timeline was ever committed; a seal counts, because what is before it is not looked for."""
    return Table(home.tables.changelog).applied_version(stream_app(line.pipeline, line.timeline)) is not None


def check_fingerprint(recorded: Mapping[str, str], current: Mapping[str, str], pipeline: str, timeline: str) -> None:
    """Refuse to resume a timeline whose definition gave other results.

    Spark itself accepts a changed sum, filter or window length over an old checkpoint and corrupts it silently.

    Raises:
        FingerprintError: state, semantics or decode differ.
    """
    changed = [part for part in ("state", "semantics", "decode") if recorded.get(part) != current.get(part)]
    if changed:
        message = (
            f"the definition of {pipeline} changed in {', '.join(changed)} since timeline {timeline} began; resuming its "
            f"checkpoint would mix two meanings in one state, so the stream does not start; see `rivertwice upgrade {pipeline}`, which "
            "says whether the new definition can continue from the old one's state, or put the definition back"
        )
        raise FingerprintError(message)


def is_first_run(home: PipelineHome, bundle: Bundle, timeline: str | None) -> bool:
    """Say whether no micro-batch of the timeline ran this definition yet; with None there is no timeline yet.

    A definition that the checks refuse does not start. One that ran before the checks existed (an earlier release) continues: its
    results exist already, and a stop could lose records.
    """
    return timeline is None or bundle.id not in bundles_of(home, path_of(home, timeline))


def require_checked(
    settings: Settings, bundle: Bundle, spark: Callable[[], SparkSession], timeline: str | None, now: datetime
) -> CheckReport:
    """Return the verdict on a definition that is about to run on a timeline; the stored verdict if there is one.

    Raises:
        DefinitionError: the checks refuse it, and it never ran a micro-batch.
    """
    name = bundle.definition.name
    home = settings.pipeline(name)
    verdict = check_bundle(home, bundle, spark, now, where=str(settings.definition_folder(name)))
    if not verdict.holds and is_first_run(home, bundle, timeline):
        verdict.require()
    return verdict


def refuse_start(settings: Settings, pipeline: str, *, from_batch: bool = False) -> None:
    """Refuse to ask for a stream whose definition cannot be loaded, or whose stored verdict refuses the start.

    This runs without Spark: a definition that was not checked yet is checked by its driver.

    Args:
        from_batch: whether a first load is asked for.

    Raises:
        DefinitionError: it would not start; the message says why.
        RequestError: it has a history in a lake, never started, and no first load is asked for.
    """
    home = settings.pipeline(pipeline)
    bundle = build_bundle(settings.definition_folder(pipeline))
    if not from_batch and select_head(read_sequence(home)) is None:
        _require_loaded(home, bundle.definition)
    verdict = read_verdict(home, bundle.id)
    if verdict is not None and not verdict.holds and is_first_run(home, bundle, select_head(read_sequence(home))):
        verdict.require()


def _require_loaded(home: PipelineHome, definition: Definition) -> None:
    """Refuse to begin a stream whose definition has a history that no first load has taken: it would be left out unseen."""
    views = [view for view, source in definition.sources.items() if source.history is not None]
    if views and FirstLoad.load(home) is None:
        message = (
            f"source {views[0]} of {definition.name} has a history in a lake, and only a first load reads one; start it with "
            f"`rivertwice start {definition.name} --from-batch`, or remove `history` to stream the log alone"
        )
        raise RequestError(message)


def check_topics(recorded: Mapping[str, str], current: Mapping[str, str], pipeline: str) -> None:
    """Refuse to read a topic that was deleted and created again under its old name.

    Raises:
        LogGapError: a topic's id is not the one with which the timeline began.
    """
    for topic, topic_id in recorded.items():
        if current.get(topic) != topic_id:
            message = (
                f"topic {topic} has id {current.get(topic)}, the timeline of {pipeline} read id {topic_id}: it was deleted "
                "and created again, so its offsets mean other records; the stream does not start; recompute from the "
                "archive and begin a new pipeline on the new topic"
            )
            raise LogGapError(message)


def resolve_timeline(
    settings: Settings,
    home: PipelineHome,
    definition: Definition,
    bundle: Bundle,
    now: datetime,
    *,
    timeline: str | None = None,
) -> Timeline:
    """Return the head timeline, ready to run; the first start creates it and moves the head.

    If it is killed between the two and run again, the result is the same. If a first load by batch is recorded, the timeline
    begins where that ends; a load by the stream itself, where that begins. With `timeline`, return that recorded timeline.

    Raises:
        FingerprintError: the definition gives other results than the timeline's.
        LogGapError: a topic is not the one that the timeline read.
    """
    topic_ids = {topic: kafka.topic_id(settings, topic) for topic in definition.topics}
    hashes = bundle.fingerprint.hashes()
    entries = read_sequence(home)  # a head move asserts the number of this look, however long the start sleeps after it
    chosen = timeline or select_head(entries)
    load = FirstLoad.load(home) if chosen is None else None
    streamed = StreamLoad.load(home)
    if load is not None:
        begin_after_load(home, load, now)
        chosen = load.timeline
    # looked at before the records: a checkpoint that comes later belongs to a driver of another host that began while this start slept
    has_remains = home.checkpoint(FIRST).exists()
    plan = plan_start(chosen, Timeline.names(home))
    name = plan.timeline
    if plan.create:
        _require_loaded(home, definition)
        if has_remains:
            shutil.rmtree(home.checkpoint(name), ignore_errors=True)
        create_timeline(
            home,
            Timeline(
                pipeline=definition.name,
                timeline=name,
                parent=None,
                first_batch=0,
                genesis=_oldest_in_kafka(settings, topic_ids) if streamed is None else streamed.genesis,
                bundle=bundle.id,
                fingerprint=hashes,
                cluster_id=kafka.cluster_id(settings),
                topic_ids=topic_ids,
                created_at=now,
                fold_buckets=buckets_at_genesis(definition),
            ),
        )
    if streamed is not None and plan.move:
        streamed.require_begun_by(Timeline.load(home, name))
    if plan.move:
        newest_seq = entries[-1].seq if entries else 0
        move_head(home, name, reason="first start", expected_seq=newest_seq, now=now)
    line = Timeline.load(home, name)
    check_fingerprint(line.fingerprint, hashes, definition.name, name)
    check_topics(line.topic_ids, topic_ids, definition.name)
    return line


def _oldest_in_kafka(settings: Settings, topics: Iterable[str]) -> StoredOffsets:
    return {topic: encode_ends(kafka.begin_offsets(settings, topic)) for topic in topics}


# Partitions that a topic got after a stream began: each is read from its first record, and for a fold a key's order may end. Pure.


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
