"""admin privacy erase, list, resume: replace a person's key in every place that keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.asking import Consent, Preview, asks_first, changes_unasked
from rivertwice.cli.frame import Frame, FriendlyGroup, as_fields, as_table, example, pass_frame
from rivertwice.cli.options import name_argument
from rivertwice.core import RequestError, to_plain

if TYPE_CHECKING:
    from rivertwice.upkeep import Erasure, ErasurePlan


@click.group(
    cls=FriendlyGroup,
    epilog=example(
        "rivertwice admin privacy erase page_views --field user --value u42 --reason 'request 118'",
        "rivertwice admin privacy list",
    ),
)
def privacy() -> None:
    """Erase a person's key everywhere, and record that.

    It is erased from archive, tables, dead letters and savepoints. The value is replaced by a pseudonym that leads to no person, in the kept log and in everything computed from it. So
    the counts stay the same: a reconcile afterwards gives the same verdicts as before.
    """


@privacy.command(
    epilog=example(
        "rivertwice admin privacy erase page_views --field user --value u42 --reason 'request 118'",
        "rivertwice admin privacy erase page_views --field user --value-file key.txt --reason 'request 118' --yes",
    )
)
@name_argument()
@click.option("--field", "fields", multiple=True, required=True, help="Field of the records that holds it; repeatable.")
@click.option("--column", "columns", multiple=True, help="Result column that holds it under another name; repeatable.")
@click.option("--value", help="What must go. It stays in the shell's history: see --value-file.")
@click.option(
    "--value-file", type=click.File("rb"), help="The same, from a file, or from - (standard input); one line."
)
@click.option("--number", is_flag=True, help="The value is a whole number, not a text.")
@click.option(
    "--remake-state",
    is_flag=True,
    help="Also compute the streams' state again from the archive, so that no file of it, and no savepoint, holds the value. "
    "It takes as long as the whole history, and deletes all savepoints. A fold always needs it.",
)
@click.option("--as", "pseudonym", help="What is there afterwards; default: one by chance.")
@asks_first("a value is replaced everywhere, savepoints are deleted")
@pass_frame
def erase(
    frame: Frame,
    name: str,
    fields: tuple[str, ...],
    columns: tuple[str, ...],
    value: str | None,
    value_file: Any,
    number: bool,
    remake_state: bool,
    pseudonym: str | None,
    consent: Consent,
) -> None:
    """Erase a value of NAME's records.

    It is erased from all pipelines that share topics with NAME. What would be rewritten is shown first, and what prevents it. The streams must be
    stopped, must have read the records, and their windows must be closed. Kafka cannot forget a record; the output shows until
    when Kafka keeps them.
    """
    from rivertwice.core import utc_now
    from rivertwice.upkeep import begin_erasure, new_erasure, plan_erasure

    if consent.reason is None:
        message = "an erasure needs its reason, which the register keeps: --reason 'request 118'; nothing was done"
        raise click.UsageError(message)
    text = value_file.read().decode().rstrip("\r\n") if value_file is not None else value
    if text is None or (value is not None and value_file is not None):
        message = "give what must go either with --value or with --value-file; nothing was done"
        raise RequestError(message)
    wanted = _typed(text, number=number)
    now = utc_now()
    asked = new_erasure(
        frame.settings,
        frame.known_pipeline(name),
        wanted,
        fields=fields,
        columns=columns,
        pseudonym=None if pseudonym is None else _typed(pseudonym, number=number),
        why=consent.reason,
        by=consent.by,
        now=now,
        remake_state=remake_state,
    )

    def preview() -> Preview:
        plan = plan_erasure(frame.settings, asked, wanted)
        return Preview(plan, lambda: describe_plan(plan), refused=bool(plan.refusals))

    again = "the same command with --yes"  # its words hold the value
    if not consent.given(name, f"Erase it from {name}, for good?", preview, again=again, noted=True):
        return
    done = begin_erasure(frame.settings, asked, wanted, now=now, progress=frame.progress)
    _show(frame, asked, done)


def _typed(text: str, *, number: bool) -> str | int:
    if not number:
        return text
    try:
        return int(text)
    except ValueError:
        message = f"{text[:40]!r} is not a whole number; leave --number out if the field holds texts"
        raise RequestError(message) from None


@privacy.command("list", epilog=example("rivertwice admin privacy list", "rivertwice --output json admin privacy list"))
@pass_frame
def list_erasures(frame: Frame) -> None:
    """List every erasure: when, by whom, why, and its state.

    The erased values are not kept.
    """
    from rivertwice.upkeep import read_erasures

    erasures = read_erasures(frame.settings)
    value = [{**to_plain(asked), "outcome": to_plain(done)} for asked, done in erasures]
    rows = [
        (
            asked.id,
            asked.pipeline,
            ", ".join(asked.fields),
            asked.asked_at,
            asked.by,
            asked.why,
            "open" if done is None else "done",
        )
        for asked, done in erasures
    ]
    frame.emit(
        value,
        lambda: (
            as_table(("erasure", "pipeline", "fields", "asked", "by", "why", "state"), rows)
            if rows
            else "no erasure was ever asked for"
        ),
    )


@privacy.command(epilog=example("rivertwice admin privacy resume er-0123456789ab"))
@click.argument("erasure_id")
@changes_unasked("a value is replaced everywhere", because="the erasure that it continues was asked for")
@pass_frame
def resume(frame: Frame, erasure_id: str) -> None:
    """Continue an erasure that waited or was interrupted.

    One that is done stays as it is.
    """
    from rivertwice.core import utc_now
    from rivertwice.upkeep import load_erasure, resume_erasure

    done = resume_erasure(frame.settings, erasure_id, now=utc_now(), progress=frame.progress)
    _show(frame, load_erasure(frame.settings, erasure_id)[0], done)


def _show(frame: Frame, asked: Erasure, done: Mapping[str, Any]) -> None:
    frame.emit({**to_plain(asked), "outcome": to_plain(done)}, lambda: describe_outcome(asked, done))


def describe_plan(plan: ErasurePlan) -> str:
    """Return a plan for people."""
    rows: list[list[Any]] = [[f"archive of {topic}", f"{count} records"] for topic, count in plan.records.items()]
    rows += [[table, f"{count} rows"] for table, count in plan.rows.items()]
    rows += [[f"savepoints of {name}", ", ".join(ids)] for name, ids in plan.savepoints.items()]
    rows += [
        [f"not archived yet of {topic}", f"{count} records, looked at when they are"]
        for topic, count in plan.unarchived.items()
        if count
    ]
    rows += [[f"Kafka keeps {topic}", _kept(until)] for topic, until in plan.kafka.items() if plan.records.get(topic)]
    rows += [[f"stays, yours to erase: {where}", f"{count} rows"] for where, count in plan.around.items()]
    parts = [
        as_table(("what", "how much"), rows, title=f"erasure over {', '.join(plan.pipelines)}: nothing was changed")
    ]
    if plan.refusals:
        parts.append("\n".join(f"prevents it: {why}" for why in plan.refusals))
    else:
        parts.append("to do it: the same with --yes")
    return "\n\n".join(parts)


def describe_outcome(asked: Erasure, done: Mapping[str, Any]) -> str:
    """Return an outcome for people."""
    value = {
        "erasure": asked.id,
        "done": done.get("done_at"),
        "is there now": asked.pseudonym,
        "records": ", ".join(f"{topic} {count}" for topic, count in done.get("records", {}).items()),
        "rows": ", ".join(f"{table} {count}" for table, count in done.get("rows", {}).items()) or "none",
        "savepoints removed": sum(len(ids) for ids in done.get("savepoints", {}).values()),
        "Kafka keeps them": ", ".join(
            f"{topic} {_kept(until)}" for topic, until in done.get("kafka", {}).items() if done["records"].get(topic)
        )
        or "none of it",
    }
    left = "".join(f"\nyours to erase: {place}" for place in done.get("left", ()))
    return f"{as_fields(value)}{left}\nto see that nothing changed: rivertwice reconcile {asked.pipeline}"


def _kept(until: str | None) -> str:
    return "for ever, by its retention" if until is None else f"until {until}"
