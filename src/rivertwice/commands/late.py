"""late list, queue: the rows that came too late, and the windows that wait for their correction."""

from __future__ import annotations

import click

from rivertwice.commands.frame import Frame, FriendlyGroup, as_table, example, pass_frame, to_plain
from rivertwice.commands.options import name_argument, renamed_option


@click.group(
    cls=FriendlyGroup, epilog=example("rivertwice late list order_totals", "rivertwice late queue order_totals")
)
def late() -> None:
    """List records that came after their window had closed.

    They are there if the definition keeps them (late.policy).
    """


@late.command(
    "list", epilog=example("rivertwice late list order_totals", "rivertwice late list order_totals --limit 20")
)
@name_argument()
@renamed_option("--last", "--limit", type=click.IntRange(1))
@click.option("--limit", type=click.IntRange(1), default=200, show_default=True, help="At most so many rows, the last.")
@pass_frame
def list_rows(frame: Frame, name: str, limit: int) -> None:
    """List the late rows of NAME by address.

    It says which window each missed, and by which watermark.
    """
    from rivertwice.timeline.late_rows import read_late_rows
    from rivertwice.timeline.lineage import path_ledger

    home = frame.settings.pipeline(frame.known_pipeline(name))
    rows = read_late_rows(home, path_ledger(home))
    shown = [
        {
            "place": f"{row['topic']}/{row['partition']}@{row['offset']}",
            "batch": row["batch"].batch,
            **{key: to_plain(row[key]) for key in ("event_time", "window_start", "window_end", "late_watermark")},
            "fields": row["fields"],
        }
        for row in rows[-limit:]
    ]
    columns = ("place", "batch", "event_time", "window_start", "window_end", "late_watermark", "fields")
    frame.emit(
        {"pipeline": name, "rows": shown, "total": len(rows)},
        lambda: (
            f"{as_table(columns, [[row[key] for key in columns] for row in shown])}\n{len(shown)} of {len(rows)} late rows"
        ),
    )


@late.command(
    "queue", epilog=example("rivertwice late queue order_totals", "rivertwice backfill run order_totals --late")
)
@name_argument()
@pass_frame
def show_queue(frame: Frame, name: str) -> None:
    """Show the windows that late rows wait in.

    No backfill has counted these windows yet; each is due, waiting, or given up.
    """
    from rivertwice.backfill.late_queue import describe_queue
    from rivertwice.backfill.observe import observe_late_queue
    from rivertwice.instants import utc_now

    home = frame.settings.pipeline(frame.known_pipeline(name))
    queue = observe_late_queue(home, utc_now())
    columns = ("window", "state", "records", "first_at", "last_at", "due_at")
    rows = [{"window": window.window, **{key: getattr(window, key) for key in columns[1:]}} for window in queue]
    frame.emit(
        {"pipeline": name, "windows": rows},
        lambda: (
            f"{as_table(columns, [[to_plain(row[key]) for key in columns] for row in rows])}\n{describe_queue(queue)}"
        ),
    )
