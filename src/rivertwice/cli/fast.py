"""fast: the fast path of a pipeline, and whether it sent what its log requires."""

from __future__ import annotations

import click

from rivertwice.cli.frame import DEFECT, Frame, FriendlyGroup, as_fields, example, pass_frame
from rivertwice.cli.options import name_argument
from rivertwice.core.plain import to_plain


@click.group(
    cls=FriendlyGroup, epilog=example("rivertwice fast status fraud_scores", "rivertwice fast check fraud_scores")
)
def fast() -> None:
    """Show and check the fast path of a pipeline.

    It sends rows of single records within milliseconds (docs/howto-fast.md). The agent runs it while the stream is to run.
    """


@fast.command(epilog=example("rivertwice fast status fraud_scores"))
@name_argument()
@pass_frame
def status(frame: Frame, name: str) -> None:
    """Show whether the fast path of NAME runs, and how far it is.

    It says since when it has its present meaning, and how far it has certainly come.
    """
    from rivertwice.definition.definition import load_definition
    from rivertwice.deliver.fast import committed_offsets, read_fast_owner, read_runs

    home = frame.settings.pipeline(frame.known_pipeline(name))
    owner, runs = read_fast_owner(home), read_runs(home)
    topic = load_definition(frame.settings.definition_folder(name)).source[1].topic
    value = {
        "running": owner is not None,
        "pid": owner and owner.pid,
        "run": runs[-1].number if runs else None,
        "since": runs[-1].at if runs else None,
        "begins": runs[-1].begins if runs else None,
        "committed": committed_offsets(home, topic),
    }
    frame.emit(value, lambda: as_fields(value))


@fast.command(epilog=example("rivertwice fast check fraud_scores"))
@name_argument()
@pass_frame
def check(frame: Frame, name: str) -> None:
    """Compare what the fast path of NAME sent with a batch.

    What it must send is computed from the log and compared with its topic, as a set. Exit 3 if they differ. A row that was sent twice after a crash is counted, and no difference: consumers know it by its `record`.
    """
    from rivertwice.deliver.fast_compare import compare_fast
    from rivertwice.engine.session import spark_on_demand

    with spark_on_demand(frame.settings, f"rivertwice-fast-check-{frame.known_pipeline(name)}") as spark:
        report = compare_fast(spark(), frame.settings, name)
    value = {**to_plain(report), "exact": report.exact}
    frame.emit(value, lambda: as_fields(value))
    if not report.exact:
        raise SystemExit(DEFECT)
