"""Erase a value: find it, rewrite archive and tables, remove what would bring it back, forget it.

1. Record the request, with the value, before anything changes.
2. Extend the archive to the end of the log, so that a recompute reads none of the records from Kafka any more.
3. Find the value again. Any obstacle ends the erasure here; the request stays, and is resumed later.
4. Remove the seals of the pipelines' reconciles, and comparisons of versions, and from the ledger what is stored of the bytes of
   these records (`forget_read`). Rewrite the archive, a day at a time.
5. For each pipeline: rewrite its tables; put the digests of the rewritten batches into the
   ledger; for a fold, make its state again from the rewritten archive, every batch compared with the ledger (`savepoint.restore`
   from the beginning).
6. Remove the savepoints that would bring the value back, and for a fold the checkpoints of the timelines that it left.
7. Delete, from every table, the files that its newest version does not name, and the log that names them. Then look again: a
   value that came back meanwhile (by a rebuild of `served` that had begun before) is erased again, from step 4. Overwrite the
   value in logs, and rewrite the stored records of refused deliveries.
8. Record what was done, and forget the value.

Throughout, the leases of the pipelines and the locks of the archives are held, on this host and among hosts.
A step that was done before has no work, so an erasure that was killed is resumed by its id.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from rivertwice.config import PipelineHome, Place, Settings
from rivertwice.deadletters.drafts import forget_drafts
from rivertwice.errors import RequestError
from rivertwice.instants import to_iso
from rivertwice.log import kafka
from rivertwice.log.addresses import Part
from rivertwice.log.archive import archive_lock, archived_ends, extend_archive
from rivertwice.log.archive_sums import note_sums, require_sound
from rivertwice.log.retention import kept_for
from rivertwice.pipeline.definition import Definition
from rivertwice.privacy.plan import Reader, find_refusals, refuse_pseudonym, select_tainted
from rivertwice.privacy.record import Erasure, keep_plan, load_erasure, read_value, record_done, record_request
from rivertwice.privacy.redact import PROSE, Redactor, Value, columns_around, columns_with
from rivertwice.privacy.refused import rewrite_refused
from rivertwice.privacy.remains import describe_left, forget_copies, mask_appended
from rivertwice.privacy.remake import find_obstacle, remake_state, remove_left_checkpoints
from rivertwice.privacy.rewrite import archived_by_day, forget_read, own_tables, rewrite_archive, rewrite_tables
from rivertwice.privacy.state_files import describe_left_state
from rivertwice.progress import Progress
from rivertwice.reconcile.seals.table import forget_seals
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.savepoint.prune import held_savepoints, protected_savepoints, remove_savepoints
from rivertwice.store import delta
from rivertwice.store.shared_lock import StillHeld
from rivertwice.store.table_upkeep import purge
from rivertwice.stream.at_rest import at_rest
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.lineage import head_definition, path_ledger
from rivertwice.timeline.upkeep import no_upkeep
from rivertwice.versions.comparisons import forget_comparisons

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ErasurePlan:
    """What an erasure would do.

    Attributes:
        pipelines: all pipelines that read one of the topics.
        records: topic to the number of archived records that contain the value; unarchived: topic to the number of records that
            are not in the archive yet, which are searched only once they are.
        rows: PIPELINE.TABLE to rows. savepoints: PIPELINE to savepoints that are deleted.
        unnamed: PIPELINE.TABLE.COLUMN to the number of cells that are equal to the value, for columns that were not named.
        around: where the value would still be afterwards, in any spelling, among other words too (`archive of TOPIC: value.FIELD`,
            `PIPELINE.TABLE.COLUMN`), and in how many rows.
        kafka: topic to the instant when Kafka will have deleted the newest of the records; None: never.
        refusals: the obstacles.
    """

    pipelines: Sequence[str]
    records: Mapping[str, int]
    unarchived: Mapping[str, int]
    rows: Mapping[str, int]
    savepoints: Mapping[str, Sequence[str]]
    unnamed: Mapping[str, int]
    around: Mapping[str, int]
    kafka: Mapping[str, str | None]
    refusals: Sequence[str]


def new_erasure(
    settings: Settings,
    pipeline: str,
    value: Value,
    *,
    fields: Sequence[str],
    columns: Sequence[str] = (),
    pseudonym: Value | None = None,
    why: str,
    by: str,
    now: datetime,
    remake_state: bool = False,
) -> Erasure:
    """Return a request that fits the definitions; nothing is recorded.

    Raises:
        RequestError: a pipeline that shares the topics cannot do it; the message says why.
    """
    if value == "" or type(value) not in (str, int) or (pseudonym is not None and type(pseudonym) is not type(value)):
        message = (
            f"{value!r} cannot be replaced by {pseudonym!r}; both must be texts that are not empty, or whole numbers"
        )
        raise RequestError(message)
    for name, definition in _component(settings, pipeline).items():
        if not (name == pipeline or _has_any_field(definition, fields)):
            continue
        why_not = refuse_pseudonym(definition, fields, value, pseudonym)
        if why_not is not None:
            message = f"nothing is erased, for {name} stands in the way: {why_not}"
            raise RequestError(message)
    return Erasure(
        id=f"er-{secrets.token_hex(6)}",
        pipeline=pipeline,
        fields=tuple(sorted(fields)),
        columns=tuple(sorted({*fields, *columns})),
        pseudonym=pseudonym if pseudonym is not None else _random_pseudonym(value),
        why=why,
        by=by,
        asked_at=now,
        remake_state=remake_state,
    )


def _has_any_field(definition: Definition, fields: Sequence[str]) -> bool:
    return any(name in source.schema_ for name in fields for source in definition.sources.values())


def _random_pseudonym(value: Value) -> Value:
    return f"erased-{secrets.token_hex(8)}" if isinstance(value, str) else 2**30 + secrets.randbelow(2**30)


def plan_erasure(settings: Settings, asked: Erasure, value: Value) -> ErasurePlan:
    """Return what would be done; nothing is changed."""
    definitions = _component(settings, asked.pipeline)
    redactor = asked.redactor(value, definitions.values())
    topics = sorted({topic for definition in definitions.values() for topic in definition.topics})
    places: dict[Part, list[int]] = {}
    records, until = {}, {}
    around: dict[str, int] = {}
    inside: list[str] = []
    for topic in topics:
        places_of_topic, newest, left = _find_records(settings, topic, redactor)
        around |= {f"archive of {topic}: {where}": count for where, count in left.items()}
        places |= places_of_topic
        records[topic] = sum(map(len, places_of_topic.values()))
        until[topic] = _gone_from_kafka(settings, topic, newest)
    rows: dict[str, int] = {}
    unnamed: dict[str, int] = {}
    savepoints: dict[str, list[str]] = {}
    refusals: list[str] = []
    for name, definition in definitions.items():
        reader = _reader(settings, name, definition, asked, has_records=any(places.values()))
        refusals += find_refusals(reader, places)
        savepoints[name] = [savepoint.id for savepoint in select_tainted(reader, places)]
        for table, path in own_tables(settings.pipeline(name), definition).items():
            held = delta.read(path)
            if held is None:
                continue
            new, changed = redactor.table(held, prose=PROSE.get(table, ()))
            rows |= {f"{name}.{table}": len(changed)} if changed else {}
            left = {f"{name}.{table}.{column}": count for column, count in columns_around(new, redactor).items()}
            around |= left
            if definition.window.kind.keeps_every_key and table == "changelog":
                inside += left
            unnamed |= {f"{name}.{table}.{c}": n for c, n in columns_with(held, value, redactor.names).items()}
    if unnamed:
        where = ", ".join(sorted(unnamed))
        refusals.append(f"columns that were not named hold just the value: {where}; name them too (--column)")
    if inside:
        where = ", ".join(sorted(inside))
        refusals.append(
            f"texts of a fold hold the value among other words: {where}; a replay would write them again and not agree with the tables; "
            "keep the value in a column of its own, in a pipeline of another name, and let this one go"
        )
    return ErasurePlan(
        pipelines=tuple(definitions),
        records=records,
        unarchived={topic: _unarchived(settings, topic) for topic in topics},
        rows=rows,
        savepoints={name: ids for name, ids in savepoints.items() if ids},
        unnamed=unnamed,
        around=around,
        kafka=until,
        refusals=tuple(refusals),
    )


def begin_erasure(
    settings: Settings, asked: Erasure, value: Value, *, now: datetime, progress: Progress
) -> Mapping[str, Any]:
    """Record a request and carry it out."""
    record_request(settings, asked, value)  # step 1
    progress(f"{asked.id} recorded; if it is cut off: rivertwice privacy resume {asked.id}")
    return resume_erasure(settings, asked.id, now=now, progress=progress)


def resume_erasure(settings: Settings, erasure_id: str, *, now: datetime, progress: Progress) -> Mapping[str, Any]:
    """Carry out the remaining steps of a request, and return the recorded outcome.

    Raises:
        RequestError: there is an obstacle; the request stays.
        LeaseLostError: a driver runs.
    """
    asked, done = load_erasure(settings, erasure_id)
    value = read_value(settings, erasure_id)
    if done is not None or value is None:
        record_done(settings, erasure_id, done or {}, now)
        return load_erasure(settings, erasure_id)[1] or {}
    definitions = _component(settings, asked.pipeline)
    topics = sorted({topic for definition in definitions.values() for topic in definition.topics})
    with ExitStack() as stack:
        checks = [
            stack.enter_context(_kept_still(settings.pipeline(name), erasure_id, now)) for name in sorted(definitions)
        ]
        for topic in topics:  # step 2
            lock = stack.enter_context(archive_lock(settings, topic, patience_s=_OTHER_HOST_S))
            extend_archive(None, settings, topic, chunk_records=20_000, progress=progress, held=lock)
            checks.append(lock)
            table = delta.open_table(settings.archive(topic))
            if table is not None:  # damaged data must not be written again as if it were right
                require_sound(settings, topic, table)
        plan = plan_erasure(settings, asked, value)  # step 3
        if plan.refusals:
            message = f"{erasure_id} waits: {'; '.join(plan.refusals)}; then `rivertwice privacy resume {erasure_id}`"
            raise RequestError(message)
        first_plan = _first_found(settings, erasure_id, plan)

        def check() -> None:
            for require_held in checks:
                require_held()

        for _ in range(_ROUNDS):
            _rewrite_all(settings, asked, value, definitions, plan, first_plan, now=now, progress=progress, check=check)
            plan = plan_erasure(settings, asked, value)
            if not any(plan.records.values()) and not plan.rows:
                break
            progress(f"{erasure_id}: the value came back while it was erased; it is looked for again")
        else:
            message = (
                f"{erasure_id} is not done: the value came back {_ROUNDS} times while it was erased, in {', '.join(plan.rows)}; a "
                f"backfill or another host writes it; end that, then `rivertwice privacy resume {erasure_id}`"
            )
            raise RequestError(message)
        masked = mask_appended(settings, map(settings.pipeline, definitions), value)
        redactor = asked.redactor(value, definitions.values())
        for name, definition in definitions.items():
            masked |= rewrite_refused(settings.pipeline(name), definition, redactor)
            dropped = forget_drafts(settings.pipeline(name))  # a value is in base64 there, so it is not looked for
            masked |= {f"{name}/operations/amend": dropped} if dropped else {}
        tables = list(_all_tables(settings, definitions, topics))
        forget_copies(settings, tables)
        left = [
            *(f"{where}: {count} rows hold it" for where, count in plan.around.items()),
            *(line for name in definitions for line in describe_left_state(settings.pipeline(name), value)),
            *describe_left(settings, definitions, tables, value),
        ]
    outcome = {**{name: first_plan[name] for name in _KEPT}, "masked": masked, "left": left}
    record_done(settings, erasure_id, outcome, now)  # step 8
    return load_erasure(settings, erasure_id)[1] or outcome


@contextmanager
def _kept_still(home: PipelineHome, erasure_id: str, now: datetime) -> Iterator[StillHeld]:
    """Keep drivers, and this host's upkeep, from writing a pipeline's tables for the block."""
    with at_rest(home, erasure_id, now, running="its tables cannot be rewritten") as check, no_upkeep(home):
        yield check


def _rewrite_all(
    settings: Settings,
    asked: Erasure,
    value: Value,
    definitions: Mapping[str, Definition],
    plan: ErasurePlan,
    first_plan: Mapping[str, Any],
    *,
    now: datetime,
    progress: Progress,
    check: StillHeld,
) -> None:
    """Do steps 4 to 7 once; the caller holds every lease and every archive's lock, and `check` raises if one was lost."""
    redactor = asked.redactor(value, definitions.values())
    topics = sorted({topic for definition in definitions.values() for topic in definition.topics})
    for name in definitions:  # before the archive changes too: it is what verdicts were judged by
        forget_seals(settings.pipeline(name))
        forget_comparisons(settings.pipeline(name))
    places = {
        part: at
        for topic in topics
        if plan.records[topic]
        for part, at in _find_records(settings, topic, redactor)[0].items()
    }
    for name in definitions if places else ():
        forget_read(settings.pipeline(name), places, check)
    for topic in topics:  # step 4
        rewrite_archive(settings, topic, redactor, progress, check)
        note_sums(settings, topic)
    for name, definition in definitions.items():
        home = settings.pipeline(name)
        rewrite_tables(home, definition, redactor, progress, check)  # step 5
        going = {*plan.savepoints.get(name, ()), *first_plan["savepoints"].get(name, ())}
        is_made_again = asked.remakes(definition, any(first_plan["records"].get(topic) for topic in definition.topics))
        if is_made_again:
            remake_state(settings, name, asked.id, progress)
        remove_savepoints(home, going, now=now, newest_too=is_made_again)  # step 6
        if is_made_again:
            remove_left_checkpoints(home)
    for path in _all_tables(settings, definitions, topics):  # step 7
        check()
        purge(path)
    for name in definitions:
        forget_seals(settings.pipeline(name))  # a reconcile that began meanwhile may have read rows of before and after


_ROUNDS = 3
_OTHER_HOST_S = 120.0  # how long an erasure waits for another host that works on an archive
_KEPT = ("records", "rows", "savepoints", "kafka")


def _first_found(settings: Settings, erasure_id: str, plan: ErasurePlan) -> Mapping[str, Any]:
    """Return the plan from before the first change: after a partial rewrite, a new plan contains only the rest."""
    return keep_plan(settings, erasure_id, {name: dict(getattr(plan, name)) for name in _KEPT})


def _component(settings: Settings, pipeline: str) -> dict[str, Definition]:
    """Return the pipelines that are connected with this one by shared topics: name to the definition that the head runs."""
    known = {name: definition for name in _names(settings) if (definition := head_definition(settings.pipeline(name)))}
    if pipeline not in known:
        message = (
            f"{pipeline} never ran here, so it has no data; pipelines that did: {', '.join(sorted(known)) or 'none'}"
        )
        raise RequestError(message)
    topics, joined = set(known[pipeline].topics), {pipeline}
    while more := {name for name, candidate in known.items() if name not in joined and topics & set(candidate.topics)}:
        joined |= more
        topics |= {topic for name in more for topic in known[name].topics}
    return {name: known[name] for name in sorted(joined)}


def _names(settings: Settings) -> set[str]:
    folders = (settings.home / "pipelines").glob("*")
    return {path.parent.name for path in settings.definitions.glob("*/pipeline.yaml")} | {
        folder.name for folder in folders
    }


def _reader(settings: Settings, name: str, definition: Definition, asked: Erasure, *, has_records: bool) -> Reader:
    home = settings.pipeline(name)
    owner = lease_owner(home)
    remakes = asked.remakes(definition, has_records)
    protected = held_savepoints if remakes else protected_savepoints
    return Reader(
        name=name,
        definition=definition,
        driver=None if owner is None else owner.pid,
        ledger=path_ledger(home),
        remakes=remakes,
        savepoints=list_savepoints(home),
        protected=protected(home, now=_NEVER),
        obstacle=find_obstacle(settings, home, asked.id) if remakes else None,
    )


_NEVER = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
"""With this instant every lease counts as held: an erasure waits until it is given back or pruned."""


def _all_tables(settings: Settings, definitions: Mapping[str, Definition], topics: Iterable[str]) -> Iterator[Place]:
    for topic in topics:
        yield settings.archive(topic)
    for name, definition in definitions.items():
        yield from own_tables(settings.pipeline(name), definition).values()


def _find_records(
    settings: Settings, topic: str, redactor: Redactor
) -> tuple[dict[Part, list[int]], datetime | None, Mapping[str, int]]:
    """Return the archived records of the present topic that contain the value, the newest one's timestamp, and what would be left.

    What would be left is a place in a record (`columns_around`) to the number of archived records.
    """
    known = kafka.topic_id(settings, topic)
    places: dict[Part, list[int]] = {}
    newest: datetime | None = None
    left: Counter[str] = Counter()
    for _, rows in archived_by_day(settings, topic):
        new, changed = redactor.table(rows)
        left.update(columns_around(new, redactor))
        for row in rows.take(pa.array(changed, pa.int64())).to_pylist():
            if row["topic_id"] == known:
                places.setdefault(Part(topic, row["partition"]), []).append(row["offset"])
                newest = row["timestamp"] if newest is None else max(newest, row["timestamp"])
    return {part: sorted(offsets) for part, offsets in places.items()}, newest, left


def _gone_from_kafka(settings: Settings, topic: str, newest: datetime | None) -> str | None:
    retention = kept_for(kafka.topic_config(settings, topic))
    return None if newest is None or retention is None else to_iso(newest + retention)


def _unarchived(settings: Settings, topic: str) -> int:
    ends = archived_ends(settings, topic, kafka.topic_id(settings, topic))
    begin = kafka.begin_offsets(settings, topic)
    return sum(end - ends.get(p, begin[p]) for p, end in kafka.end_offsets(settings, topic).items())
