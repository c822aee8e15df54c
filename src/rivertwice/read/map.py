"""The map: what flows from topics through pipelines and tables to sinks, and how each part does. Pure; `web_map` adds Airflow's DAGs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rivertwice.core import RivertwiceError, Settings, base_of, counted
from rivertwice.definition import Definition, Delivery
from rivertwice.deliver import SinkView, sinks_of, view_delivery
from rivertwice.read.now import served_keeps_up
from rivertwice.read.overview import Snapshot, read_cached
from rivertwice.read.problems import BAD, CALM, GOOD, NONE, WARN

log = logging.getLogger(__name__)
RUN_TONES: Mapping[str, str] = {"success": GOOD, "failed": BAD, "running": CALM, "queued": CALM}
STOPS_FLOW = frozenset({"lag_grows", "lag_unknown"})
"""Problems that are drawn on the way from topics to the pipeline."""


@dataclass(frozen=True)
class MapNode:
    """One part.

    Attributes:
        id: `KIND:NAME`, unique in the map. kind: topic, asset, pipeline, table, sink, fast or dag.
        tone: one of `LEVELS`. word: its state in a few words.
        pipeline, tab: where it is shown; empty: nowhere in these pages.
    """

    id: str
    kind: str
    title: str
    tone: str = NONE
    word: str = ""
    pipeline: str = ""
    tab: str = ""


@dataclass(frozen=True)
class MapEdge:
    """What flows from one part to another, with what waits on the way; empty: nothing is known to wait."""

    source: str
    target: str
    text: str = ""
    tone: str = NONE


@dataclass(frozen=True)
class FlowMap:
    """The parts in the order of the flow of each pipeline, and the ways between them."""

    nodes: tuple[MapNode, ...]
    edges: tuple[MapEdge, ...]

    def with_dags(self, waiting: Iterable[tuple[str, str, str, str]]) -> FlowMap:
        """Return it with Airflow's DAGs that wait. Pure.

        Args:
            waiting: of each the part that it waits for, the asset's name, the DAG and the state of its newest run; empty: it never ran.
        """
        known = {each.id for each in self.nodes}
        nodes: dict[str, MapNode] = {}
        edges = []
        for source, asset, dag, state in waiting:
            if source in known:
                own = f"dag:{dag}"
                nodes[own] = MapNode(own, "dag", dag, RUN_TONES.get(state, NONE), state or "never ran")
                edges.append(MapEdge(source, own, asset))
        return FlowMap((*self.nodes, *nodes.values()), (*self.edges, *edges))


def draw_map(settings: Settings, definitions: Iterable[Definition], refused: Iterable[str], now: datetime) -> FlowMap:
    """Return the map of these pipelines and versions. One that cannot be read is a red node, and hides no other.

    Args:
        refused: names of those whose definition is not accepted.
    """
    nodes = {each.id: each for each in (_broken(name, "refused by lint") for name in refused)}
    edges: dict[tuple[str, str], MapEdge] = {}
    for definition in definitions:
        try:
            seen = read_cached(settings, definition, now)
            # the sinks belong to the pipeline, not to a version: they hang on what it serves
            sinks = sinks_of(settings, base_of(definition.name)) if seen.facts.stream.serves else {}
            views = view_delivery(settings, base_of(definition.name), sinks)
        except (RivertwiceError, OSError, ValueError, KeyError) as error:
            log.warning("the map cannot show %s: %s", definition.name, error)
            broken = _broken(definition.name, "cannot be read")
            nodes[broken.id] = broken
            continue
        for part in parts_of(definition, seen, [(sinks[view.sink], view) for view in views]):
            if isinstance(part, MapNode):
                nodes.setdefault(part.id, part)
            else:
                edges[part.source, part.target] = part
    return FlowMap(tuple(nodes.values()), tuple(edges.values()))


def _broken(name: str, state: str) -> MapNode:
    return MapNode(f"pipeline:{name}", "pipeline", name, BAD, state, name, "now")


def parts_of(
    definition: Definition, seen: Snapshot, sinks: Sequence[tuple[Delivery, SinkView]]
) -> Iterator[MapNode | MapEdge]:
    """Yield the nodes and edges of one pipeline or version. Pure.

    Args:
        sinks: those of what it serves, with how far each is; none if another version serves.
    """
    name, facts, lights = definition.name, seen.facts, seen.now.lights
    own = f"pipeline:{name}"
    yield from _sources(definition, seen, own)
    yield MapNode(own, "pipeline", name, seen.now.worst.level, lights["stream"].word, name, "now")
    if definition.fast is not None:
        topic = f"topic:{definition.fast.topic}"
        yield MapNode(topic, "topic", definition.fast.topic)
        yield MapEdge(own, topic, "fast path, at least once")
    if not facts.stream.serves:
        return
    served = f"table:{base_of(name)}"
    yield MapNode(
        served, "table", f"{base_of(name)}: served", lights["data"].tone, lights["data"].word, name, "correctness"
    )
    until = getattr(facts.stream.served, "until", None)
    text = "" if until is None else f"until {until:%Y-%m-%d %H:%M}"
    yield MapEdge(own, served, text, NONE if until is None else GOOD if served_keeps_up(facts, seen.at) else WARN)
    for sink, view in sinks:
        yield from _sink(sink, view, served, name)


def _sources(definition: Definition, seen: Snapshot, own: str) -> Iterator[MapNode | MapEdge]:
    stream = seen.facts.stream
    problem = next((each for each in (seen.now.worst, *seen.now.others) if each.kind in STOPS_FLOW), None)
    beat = seen.facts.observation.heartbeat
    parts: Mapping[str, Mapping[str, int]] = {} if beat is None else beat.lag_parts
    for topic in definition.topics:
        lag = sum(parts[topic].values()) if topic in parts else stream.lag if len(definition.topics) == 1 else None
        tone = NONE if lag is None or not stream.is_lag_fresh else GOOD if problem is None else problem.level
        text = "lag not known" if lag is None else f"lag {lag:,}" if stream.is_lag_fresh else f"lag was {lag:,}"
        yield MapNode(f"topic:{topic}", "topic", topic)
        yield MapEdge(f"topic:{topic}", own, text, tone)
    for asset in definition.stream.assets:
        yield MapNode(f"asset:{asset}", "asset", asset, NONE, "its events start runs")
        yield MapEdge(f"asset:{asset}", own, "starts a run")


def _sink(sink: Delivery, view: SinkView, served: str, pipeline: str) -> Iterator[MapNode | MapEdge]:
    tone, word = state_of_sink(view)
    own = f"sink:{pipeline}/{view.sink}"
    yield MapNode(own, "sink", f"{view.sink}: {view.to}", tone, word, pipeline, "results")
    waits = view.lag_batches
    text = "lag not known" if waits is None else "" if not waits else counted(waits, "batch waits", "batches wait")
    yield MapEdge(served, own, text, tone)
    if sink.to == "kafka":
        yield MapNode(f"topic:{sink.topic}", "topic", sink.topic)
        yield MapEdge(own, f"topic:{sink.topic}")


def state_of_sink(view: SinkView) -> tuple[str, str]:
    """Return tone and words of a sink's state. Pure."""
    if view.consecutive_failures or view.on_head_path is False:
        return BAD, (view.error or "it has rows that the head left").partition("\n")[0][:200]
    if view.refused:
        return WARN, counted(view.refused, "delivery refused", "deliveries refused")
    if view.error:
        return WARN, view.error.partition("\n")[0][:200]
    if view.batch is None and view.sequence is None:
        return NONE, "nothing delivered yet"
    return GOOD, "up to date" if not view.lag_batches else "delivers"
