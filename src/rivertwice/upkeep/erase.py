"""Erase a value: plan what is affected, rewrite archive and tables, make the state again, forget the value.

1. Record the request, with the value, before anything changes.
2. Extend the archive to the end of the log, so that a recompute reads none of the records from Kafka any more.
3. Find the value again. Any obstacle ends the erasure here; the request stays, and is resumed later.
4. Remove the seals of the pipelines' reconciles, and comparisons of versions, and from the ledger what is stored of the bytes of
   these records (`forget_read`). Rewrite the archive, a day at a time.
5. For each pipeline: rewrite its tables; put the digests of the rewritten batches into the
   ledger; for a fold, make its state again from the rewritten archive, every batch compared with the ledger (`savepoint.restore`
   from the beginning).
6. Remove the savepoints that would bring the value back, and for a fold the checkpoints of the timelines that it left.
7. Let catalogs that name files of the tables name the new ones alone. Delete, from every table, the files that its newest version does not name, and the log that names them. Then look again: a
   value that came back meanwhile (by a rebuild of `served` that had begun before) is erased again, from step 4. Overwrite the
   value in logs, and rewrite the stored records of refused deliveries.
8. Record what was done, and forget the value.

Throughout, the leases of the pipelines and the locks of the archives are held, on this host and among hosts.
A step that was done before has no work, so an erasure that was killed is resumed by its id.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from rivertwice.core import PipelineHome, Place, Progress, RequestError, RivertwiceError, Settings, from_ms, to_iso
from rivertwice.definition import Definition, InSet, Pattern, Source
from rivertwice.log import (
    LakeHistory,
    Part,
    archive_lock,
    archived_ends,
    extend_archive,
    kafka,
    kept_for,
    note_sums,
    require_sound,
)
from rivertwice.reconcile import forget_seals
from rivertwice.savepoint import (
    OperationStep,
    ProofState,
    Restore,
    Savepoint,
    StateBase,
    beginning_of,
    check_chain,
    current_fingerprint,
    equivalent_bundles,
    held_savepoints,
    list_savepoints,
    protected_savepoints,
    read_operations,
    read_restores,
    remove_savepoints,
    require_fingerprint,
    require_one_definition,
    restore_savepoint,
)
from rivertwice.storage import StillHeld, Table, TableCare
from rivertwice.stream import at_rest, lease_owner
from rivertwice.timeline import LedgerRow, StoredRequest, head, head_definition, no_upkeep, path_ledger
from rivertwice.upkeep.erasure_record import Erasure, keep_plan, load_erasure, read_value, record_done, record_request
from rivertwice.upkeep.redact import PROSE, Redactor, Value, columns_around, columns_with
from rivertwice.upkeep.remains import (
    describe_left,
    describe_left_state,
    forget_copies,
    mask_appended,
    renew_registered,
    rewrite_refused,
)
from rivertwice.upkeep.rewrite import archived_by_day, forget_read, own_tables, rewrite_archive, rewrite_tables
from rivertwice.versions import forget_comparisons

# The obstacles of an erasure, and which savepoints it deletes. Pure.
#
# A record may be rewritten when the old value will not be read or emitted any more: the stream has read the record, all its
# possible windows are closed, and no savepoint is left that would bring the value back from its state or from Kafka. The state
# of a fold keeps every key for ever, so it is made again from the rewritten archive, and all its savepoints are deleted.

Places = Mapping[Part, Sequence[int]]
"""Part to the offsets of the records that contain the value, ascending."""
_TEXTS, _NUMBERS = ("string",), ("int", "bigint")


@dataclass(frozen=True)
class Reader:
    """The present state of a pipeline that reads one of the topics.

    Attributes:
        definition: the head's definition.
        driver: pid of a driver that runs, or None.
        ledger: batches on the head's path.
        remakes: its state is rebuilt, so the present one is never an obstacle.
        savepoints: all savepoints. protected: id to the reason why a prune would keep it; with `remakes` only those that are held.
        obstacle: the reason why its state cannot be made again.
    """

    name: str
    definition: Definition
    driver: int | None
    ledger: Sequence[LedgerRow]
    remakes: bool
    savepoints: Sequence[Savepoint]
    protected: Mapping[str, str]
    obstacle: str | None = None

    @property
    def reach(self) -> timedelta:
        """The longest time from a record's event time to the end of its last possible window; for a session, the last record's."""
        return self.definition.window.length


def refuse_pseudonym(definition: Definition, fields: Sequence[str], value: Value, given: Value | None) -> str | None:
    """Return the reason why the fields cannot hold the value or its pseudonym, or None."""
    wanted = _TEXTS if isinstance(value, str) else _NUMBERS
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        return "the value is the text of a JSON object or array; name the fields inside of it, and their value"
    held = [name for name in fields if any(name in source.schema_ for source in definition.sources.values())]
    for source in definition.sources.values():
        for name in fields:
            kind = source.schema_.get(name)
            if kind is not None and kind not in wanted:
                return f"field {name!r} of topic {source.topic} is {kind}, and {value!r} is not such a value"
            if kind == "int" and isinstance(given, int) and given > 2**31 - 1:
                return f"pseudonym {given} does not fit field {name!r} of topic {source.topic}, which is int; give a smaller one (--as)"
            narrow = [] if source.format == "json" or kind is None else _kinds_in_schemas(source, name)
            if "enum" in narrow:
                return f"field {name!r} of topic {source.topic} is an enum, which has no symbol for a pseudonym"
            if "int" in narrow and isinstance(given, int) and given > 2**31 - 1:
                return f"pseudonym {given} does not fit field {name!r} of topic {source.topic}, whose schema says int; give a smaller one (--as)"
            strict = [rule.name for rule in source.rules if rule.field == name and isinstance(rule, InSet | Pattern)]
            if strict and given is None:
                return f"rule {strict[0]!r} judges field {name!r} of topic {source.topic}; give a pseudonym that it accepts (--as)"
    return None if held else f"none of its sources has a field {' or '.join(fields)}"


def _kinds_in_schemas(source: Source, name: str) -> list[str]:
    """Return the types of a field in the schemas with which records are written, by Avro's names."""
    if source.format == "protobuf":
        return [source.message_type.narrow_kind(name)]
    kind_names = []
    for schema in source.pins.writers.values() or (source.pins.writer,):
        field = schema.field(name)
        kinds = [] if field is None else getattr(field.type, "schemas", [field.type])
        kind_names += [str(kind.type) for kind in kinds]
    return kind_names


def find_refusals(reader: Reader, places: Places) -> list[str]:
    """Return the reasons why the value cannot be replaced now, as sentences; empty if it can."""
    name = reader.name
    refusals = []
    if reader.driver is not None:
        refusals.append(
            f"{name} runs (pid {reader.driver}): `rivertwice stop {name} --wait` first, and start it afterwards"
        )
    unread = _unread(reader, places)
    if unread:
        refusals.append(f"{name} has not read {_describe_unread(unread)} yet: let it catch up")
    if reader.remakes:
        if reader.obstacle is not None:
            refusals.append(f"the state of {name} cannot be made again: {reader.obstacle}")
        return refusals + _held(reader, select_tainted(reader, places))
    opened = _open_batches(reader.ledger, places, reader.reach, _watermark(reader.ledger))
    if opened:
        until = to_iso(
            from_ms(max(row.max_event_ms or 0 for row in opened) + reader.reach // timedelta(milliseconds=1))
        )
        refusals.append(
            f"{name} holds the value in windows that are open (read by batch {opened[-1].batch}): try again when its watermark "
            f"has passed {until}, or erase with --remake-state"
        )
    refusals += _savepoint_refusals(reader, places) if not opened and not unread else []
    return refusals


def _savepoint_refusals(reader: Reader, places: Places) -> list[str]:
    name, tainted = reader.name, select_tainted(reader, places)
    if not tainted:
        return []
    clean = [
        savepoint
        for savepoint in reader.savepoints
        if savepoint not in tainted and savepoint.status == ProofState.PROVED
    ]
    if not clean:
        return [
            f"{name} has {len(tainted)} savepoints that would bring the value back, and no proved one after it: "
            f"`rivertwice savepoint take {name}` and `rivertwice savepoint prove {name}` first"
        ]
    return _held(reader, tainted)


def _held(reader: Reader, tainted: Sequence[Savepoint]) -> list[str]:
    held = [
        f"{savepoint.id} ({reader.protected[savepoint.id]})"
        for savepoint in tainted
        if savepoint.id in reader.protected
    ]
    return [f"{reader.name} keeps savepoints that would bring the value back: {', '.join(held)}"] if held else []


def select_tainted(reader: Reader, places: Places) -> list[Savepoint]:
    """Return the savepoints that would bring the value back: from their state, or from a replay after them.

    If there is any record, every savepoint off the head's path is among them, and where the state is made again every savepoint.
    """
    if reader.remakes:
        return list(reader.savepoints)
    on_path = {(row.timeline, row.batch): number for number, row in enumerate(reader.ledger)}
    tainted = []
    for savepoint in reader.savepoints:
        manifest = savepoint.manifest
        number = on_path.get((manifest.timeline, manifest.batch))
        read = number is not None and all(
            offsets[-1] < int(manifest.offsets.get(part.topic, {}).get(str(part.partition), 0))
            for part, offsets in places.items()
            if offsets and part.topic in reader.definition.topics
        )
        rows_so_far = () if number is None else reader.ledger[: number + 1]
        if any(places.values()) and (
            not read or _open_batches(rows_so_far, places, reader.reach, manifest.watermark_ms)
        ):
            tainted.append(savepoint)
    return tainted


def _watermark(ledger: Sequence[LedgerRow]) -> int:
    return ledger[-1].batch_watermark_ms if ledger else 0


def _unread(reader: Reader, places: Places) -> list[tuple[Part, int]]:
    ends = reader.ledger[-1].parts() if reader.ledger else {}
    return [
        (part, offsets[-1])
        for part, offsets in sorted(places.items())
        if offsets and part.topic in reader.definition.topics and offsets[-1] >= ends.get(part, (0, 0))[1]
    ]


def _open_batches(ledger: Sequence[LedgerRow], places: Places, reach: timedelta, watermark_ms: int) -> list[LedgerRow]:
    """Return the batches that read one of the records and whose windows may not all be closed.

    The batch's newest event decides, not the record's own event time, so this may wait longer than needed.
    """
    reach_ms = reach // timedelta(milliseconds=1)
    return [
        row
        for row in ledger
        if row.max_event_ms is not None and row.max_event_ms + reach_ms > watermark_ms and _reads(row, places)
    ]


def _reads(row: LedgerRow, places: Places) -> bool:
    for part, (start, end) in row.parts().items():
        offsets = places.get(part, ())
        at = bisect_left(offsets, start)
        if at < len(offsets) and offsets[at] < end:
            return True
    return False


def _describe_unread(unread: Sequence[tuple[Part, int]]) -> str:
    return ", ".join(f"{part.topic}/{part.partition}@{offset}" for part, offset in unread[:5])


# Make the state of a fold again from the rewritten archive, and remove its old states.


def find_obstacle(settings: Settings, home: PipelineHome, erasure_id: str) -> str | None:
    """Return the reason why the state cannot be made again, or None; a restore that this erasure has begun is resumed."""
    for operation in read_operations(home):
        own = isinstance(operation, Restore) and operation.rewritten_by == erasure_id
        if operation.step < OperationStep.DONE and not own:
            return f"{operation.id} is not finished: finish or abandon it"
    parent = head(home)
    rows = path_ledger(home)
    if parent is None or not rows:
        return None
    beginning = beginning_of(home, parent).manifest
    try:
        require_fingerprint(beginning, current_fingerprint(settings, home.root.name))
        require_one_definition(beginning, rows, equivalent_bundles(home, beginning, rows))
        check_chain(beginning.batch, beginning.offsets, rows)
    except RivertwiceError as error:
        return str(error)
    return None


def remake_state(settings: Settings, pipeline: str, erasure_id: str, progress: Progress) -> None:
    """Continue a pipeline at rest on a new timeline whose state comes from the archive alone; once in an erasure.

    Raises:
        ReplayMismatchError: a batch gave other rows than the rewritten ones: they depend on the value in another way.
    """
    home = settings.pipeline(pipeline)
    if any(
        restore.rewritten_by == erasure_id and restore.step == OperationStep.DONE for restore in read_restores(home)
    ):
        return
    progress(f"{pipeline}: its state is made again of the rewritten archive")
    restore_savepoint(
        settings, pipeline, StateBase.BEGINNING, progress=progress, keep_intent=True, rewritten_by=erasure_id
    )


def remove_left_checkpoints(home: PipelineHome) -> None:
    """Delete the checkpoints of all timelines but the head; their records and batches stay."""
    head_now = head(home)
    for folder in home.timelines.iterdir():
        if folder.name != head_now:
            shutil.rmtree(home.checkpoint(folder.name), ignore_errors=True)
    shutil.rmtree(home.scratch, ignore_errors=True)


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
            message = f"nothing was erased, because {name} cannot be erased: {why_not}"
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
    refusals = [refusal for topic in topics if (refusal := _refuse_history(settings, topic)) is not None]
    for name, definition in definitions.items():
        reader = _reader(settings, name, definition, asked, has_records=any(places.values()))
        refusals += find_refusals(reader, places)
        savepoints[name] = [savepoint.id for savepoint in select_tainted(reader, places)]
        for table, path in own_tables(settings.pipeline(name), definition).items():
            held = Table(path).read()
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
            "keep the value in a separate column, in a pipeline of another name, and drop this one"
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
    progress(f"{asked.id} recorded; if it is interrupted: rivertwice admin privacy resume {asked.id}")
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
            table = Table(settings.archive(topic)).open()
            if table is not None:  # damaged data must not be written again as if it were right
                require_sound(settings, topic, table)
        plan = plan_erasure(settings, asked, value)  # step 3
        if plan.refusals:
            message = (
                f"{erasure_id} waits: {'; '.join(plan.refusals)}; then `rivertwice admin privacy resume {erasure_id}`"
            )
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
                f"backfill or another host writes it; end that, then `rivertwice admin privacy resume {erasure_id}`"
            )
            raise RequestError(message)
        masked = mask_appended(settings, map(settings.pipeline, definitions), value)
        redactor = asked.redactor(value, definitions.values())
        for name, definition in definitions.items():
            masked |= rewrite_refused(settings.pipeline(name), definition, redactor)
            dropped = StoredRequest.forget_all(settings.pipeline(name))
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
    for name in definitions:  # step 7
        renew_registered(settings, name)  # what fails is said in the outcome
    for path in _all_tables(settings, definitions, topics):
        check()
        TableCare(path).purge()
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


def _refuse_history(settings: Settings, topic: str) -> str | None:
    """Return why nothing can be erased of a topic with a history in a lake: that table is not ours, and every recompute reads it again."""
    history = LakeHistory.pinned(settings, topic, kafka.topic_id(settings, topic))
    if history is None:
        return None
    return (
        f"topic {topic} has a history in a lake, {history.text}, which is only read, so what it has would be computed again; erase the value in that "
        "table with its own tools, and start again with its new snapshot: another topic, into which the log is copied without the value, and a "
        "pipeline of another name"
    )


def _gone_from_kafka(settings: Settings, topic: str, newest: datetime | None) -> str | None:
    retention = kept_for(kafka.topic_config(settings, topic))
    return None if newest is None or retention is None else to_iso(newest + retention)


def _unarchived(settings: Settings, topic: str) -> int:
    ends = archived_ends(settings, topic, kafka.topic_id(settings, topic))
    begin = kafka.begin_offsets(settings, topic)
    return sum(end - ends.get(p, begin[p]) for p, end in kafka.end_offsets(settings, topic).items())
