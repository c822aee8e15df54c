"""admin archive, admin retention: how long records of the log are needed, and their longer copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from rivertwice.cli.acts import ActCommand, asks_for, run_act
from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import DEFECT, Frame, as_fields, as_table, example, pass_frame
from rivertwice.cli.options import name_argument
from rivertwice.cli.warm import on_engine


@click.command(cls=ActCommand, epilog=example("rivertwice admin archive flight_delays"))
@asks_for("archive")
@on_engine()
@changes_unasked("the archive", because="records are added")
@pass_frame
def archive(frame: Frame, name: str, asked: dict[str, Any]) -> None:
    """Copy the records that the archive lacks from Kafka.

    All topics of NAME are copied, by exact offset ranges; it is safe to repeat.
    """
    done = run_act(frame, "archive", frame.known_pipeline(name), asked)
    reports = list(done.values())
    value = reports[0] if len(reports) == 1 else dict(done)
    frame.emit(value, lambda: "\n".join(as_fields(report) for report in reports))


# retention: who needs which part of the log, and how long Kafka still keeps it.


@click.command(
    epilog=example("rivertwice admin retention flight_delays", "rivertwice --output json admin retention flight_delays")
)
@name_argument()
@click.option("--check", is_flag=True, help="Exit 3 if anything needed is lost, or is nearly lost and not archived.")
@pass_frame
def retention(frame: Frame, name: str, check: bool) -> None:
    """Show who needs which records, and when Kafka deletes them.

    It lists offsets of NAME's topics, who has them, and gaps.
    """
    from rivertwice.core import utc_now
    from rivertwice.retention import summary_of, view_retention

    now = utc_now()
    plain = view_retention(frame.settings, frame.known_pipeline(name), now).to_plain(now)
    summary = summary_of(plain)
    frame.emit({**plain, "summary": summary}, lambda: _text(plain, summary))
    bad = any(lease["level"] in {"critical", "lost"} for lease in plain["leases"])
    if check and (bad or not plain["same_topic"]):
        raise SystemExit(DEFECT)


def _text(plain: dict[str, Any], summary: str | None) -> str:
    from rivertwice.retention import topics_in

    rows = [
        (
            lease["level"],
            lease["holder"],
            f"{lease['topic']}/{lease['partition']}" if "topic" in lease else lease["partition"],
            f"[{lease['needs'][0]}, {lease['needs'][1]})",
            lease["archived"],
            lease["only_kafka"],
            lease["lost"],
            lease["deadline"],
            lease["left_s"],
            f"{lease['left_share']:.0%}",
        )
        for lease in plain["leases"]
    ]
    headers = ("level", "holder", "partition", "needs", "archived", "kafka", "lost", "deadline", "left s", "left")
    lines = [line for topic in topics_in(plain) for line in _topic_lines(topic)]
    lines.append(as_table(headers, rows))
    for gap in plain["gaps"]:
        accepted = gap["accepted"]
        state = "NOT accepted" if accepted is None else f"accepted by {accepted['by']}, timeline {accepted['timeline']}"
        lines.append(f"{gap['id']}: {gap['topic']} {gap['ranges']} {gap['cause']}, {gap['lost']} lost, {state}")
    return "\n".join([*lines, *([summary] if summary else [])])


def _topic_lines(topic: Mapping[str, Any]) -> list[str]:
    retention_text = "for ever" if topic["retention_s"] is None else f"{topic['retention_s']:.0f} s"
    if topic["retention_bytes"] is not None:
        retention_text += f", {topic['retention_bytes']} bytes a partition"
    clock = topic["unarchived"]
    return [
        f"topic    {topic['topic']}, kept {retention_text}" + ("" if topic["same_topic"] else ", created again since"),
        f"archive  lacks {clock['records']} records" + _left(clock),
    ]


def _left(clock: dict[str, Any]) -> str:
    if clock["deadline"] is None:
        return ""
    return f", the first deleted not before {clock['deadline']} ({clock['left_s']} s, {clock['left_share']:.0%} left)"
