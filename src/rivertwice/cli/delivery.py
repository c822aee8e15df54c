"""deliver: send results to sinks outside the tables, and show the position of each sink."""

from __future__ import annotations

import getpass
import signal
import threading
from typing import TYPE_CHECKING

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import Frame, FriendlyGroup, as_fields, as_table, example, pass_frame, table_of
from rivertwice.cli.options import name_argument, named_reason, reason_option
from rivertwice.core import to_plain

if TYPE_CHECKING:
    from rivertwice.definition import Delivery


END_S = 10.0
"""Seconds that a sink gets to finish its step when the command is asked to end."""
POLL_S = 0.2  # short, so that signals are seen


@click.group(
    cls=FriendlyGroup, epilog=example("rivertwice deliver status", "rivertwice deliver run flight_delays --until-end")
)
def deliver() -> None:
    """Deliver results to Kafka, PostgreSQL and Iceberg.

    The sinks are listed in the definition, under `deliver`.
    """


@deliver.command(
    epilog=example(
        "rivertwice deliver run flight_delays --until-end", "rivertwice deliver run flight_delays --sink alerts --again"
    )
)
@name_argument()
@click.option("--sink", help="Only this sink; without it all of the definition.")
@click.option("--until-end", is_flag=True, help="End when nothing waits; without it, run until interrupted.")
@click.option(
    "--again", is_flag=True, help="Forget what the sink holds and deliver everything once more (needs --sink)."
)
@changes_unasked("rows at destinations", because="the agent does the same")
@pass_frame
def run(frame: Frame, name: str, sink: str | None, until_end: bool, again: bool) -> None:
    """Deliver what NAME committed and published, in the foreground.

    The agent does it by itself while the desired state of the stream is running; a sink has one deliverer at a time.
    """
    from rivertwice.core import Deadline
    from rivertwice.deliver import Delivered, make_deliverer

    chosen = _chosen(frame, name, sink, again=again)
    stop, finish = threading.Event(), threading.Event()
    if until_end:
        finish.set()
    done: list[Delivered] = []
    failed: list[Exception] = []

    def work(each: str) -> None:
        try:
            done.append(make_deliverer(frame.settings, name, each, chosen[each]).run(stop, finish, again=again))
        except Exception as error:  # raised below: a thread's own error would end in exit code 0
            failed.append(error)
            if not until_end:
                stop.set()

    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    threads = [threading.Thread(target=work, args=(each,), name=each, daemon=True) for each in chosen]
    for thread in threads:
        thread.start()
    while not stop.is_set() and any(thread.is_alive() for thread in threads):
        stop.wait(POLL_S)
    ending = Deadline.after(END_S)
    for thread in threads:
        thread.join(ending.left())
    for number, handler in before.items():
        signal.signal(number, handler)
    failed += [_not_ended(thread.name) for thread in threads if thread.is_alive()]
    rows = [
        (delivered.sink, delivered.steps, delivered.records, delivered.refused, _place(delivered))
        for delivered in sorted(done, key=lambda delivered: delivered.sink)
    ]
    frame.emit(done, lambda: as_table(("sink", "steps", "records", "refused", "position"), rows, title=name))
    if failed:
        raise failed[0]


def _not_ended(sink: str) -> Exception:
    from rivertwice.core import UnknownOutcomeError

    return UnknownOutcomeError(
        f"sink {sink} has not answered for {END_S:.0f} s, and this command ends without its answer; the sink's position shows whether it took "
        "the last step: `rivertwice deliver run` continues from there"
    )


def _chosen(frame: Frame, name: str, sink: str | None, *, again: bool) -> dict[str, Delivery]:
    from rivertwice.core import RequestError

    sinks = _sinks(frame, name)
    if not sinks:
        message = f"{name} has no sinks, so there is nothing to deliver to; say deliver in its pipeline.yaml (`rivertwice docs howto-delivery`)"
        raise RequestError(message)
    if sink is not None and sink not in sinks:
        message = f"{name} has no sink {sink[:80]!r}; there are: {', '.join(sinks)}; see deliver in its pipeline.yaml"
        raise RequestError(message)
    if again and sink is None:
        message = "--again delivers everything once more to one sink; name it with --sink"
        raise RequestError(message)
    return {sink: sinks[sink]} if sink is not None else sinks


def _place(done: object) -> str:
    position = getattr(done, "position", None)
    return "-" if position is None else f"{position.timeline}@{position.batch}, sequence {position.seq}"


@deliver.command(epilog=example("rivertwice deliver status", "rivertwice --output json deliver status flight_delays"))
@name_argument(required=False)
@click.option("--fast", is_flag=True, help="Of the fast path of NAME instead: whether it runs, and how far it is.")
@pass_frame
def status(frame: Frame, name: str | None, fast: bool) -> None:
    """Show how far each sink is, and what it waits for.

    It has the position, the batches that wait, the last error and the next attempt. Exit 3 while one fails, 1 if a definition cannot be loaded: what its sinks do is not shown.
    """
    from rivertwice.cli.frame import DEFECT, REFUSED

    if fast:
        _show_fast(frame, _required(name))
        return
    from rivertwice.definition import load_each
    from rivertwice.deliver import view_delivery

    sinks: dict[str, dict[str, Delivery]] = {}
    broken: dict[str, str] = {}
    if name:
        sinks[name] = _sinks(frame, name)
    else:
        definitions, broken = load_each(frame.settings.definitions)
        sinks = {each: _sinks(frame, each) for each in definitions}
    frame.report_broken(broken)
    views = {each: view_delivery(frame.settings, each, its) for each, its in sinks.items()}
    columns = (
        "sink", "to", "guarantee", "timeline", "batch", "sequence", "rows", "lag_batches", "waits_since", "refused", "error",
    )  # fmt: skip
    rows = [
        (name, *(to_plain(getattr(each, column)) for column in columns))
        for name, all_of in views.items()
        for each in all_of
    ]
    nothing = "no pipeline that can be loaded has sinks" if broken else "no pipeline has sinks"
    value = views | {each: {"error": error} for each, error in broken.items()}
    frame.emit(value, lambda: as_table(("pipeline", *columns), rows) if rows else nothing)
    if any(each.error for all_of in views.values() for each in all_of):
        raise SystemExit(DEFECT)
    if broken:
        raise SystemExit(REFUSED)


@deliver.command(
    epilog=example("rivertwice deliver check flight_delays", "rivertwice deliver check flight_delays --sink board")
)
@name_argument()
@click.option("--sink", help="Only this sink; without it all of the definition.")
@click.option("--fast", is_flag=True, help="What the fast path of NAME sent, with what a batch computes of the log.")
@pass_frame
def check(frame: Frame, name: str, sink: str | None, fast: bool) -> None:
    """Compare what each sink holds with what is served at its position.

    Every key and all values are compared, by hashes. Exit 3 if a sink differs, 1 if one could not be read. With --fast the rows
    of the fast path are compared as a set; one that was sent twice after a crash is counted and is not a difference: consumers
    know it by its `record`.
    """
    if fast:
        _check_fast(frame, name)
        return
    from rivertwice.cli.frame import DEFECT
    from rivertwice.core import RivertwiceError
    from rivertwice.deliver import Checked, check_sink

    found: list[Checked] = []
    failed: list[RivertwiceError] = []
    for each, asked in _chosen(frame, name, sink, again=False).items():
        try:
            found.append(check_sink(frame.settings, name, each, asked))
        except RivertwiceError as error:
            failed.append(error)
    columns = (
        "sink", "to", "state", "timeline", "batch", "served", "held", "missing", "extra", "different", "set_aside",
    )  # fmt: skip

    def text() -> str:
        lines = [table_of(columns, found, title=name)] if found else []
        for each in found:
            lines += [f"{each.sink}: {kind} {key}" for kind, key in each.named]
            lines += [f"{each.sink}: {each.told}"] if each.told else []
        return "\n".join(lines)

    frame.emit(found, text)
    if failed:
        raise failed[0]
    if any(each.is_wrong for each in found):
        raise SystemExit(DEFECT)


@deliver.command(epilog=example("rivertwice deliver refused flight_delays --sink board"))
@name_argument()
@click.option("--sink", help="Only this sink; without it all of the definition.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Lines; JSON has all.")
@pass_frame
def refused(frame: Frame, name: str, sink: str | None, limit: int) -> None:
    """List the deliveries that a destination refused for good.

    Each is shown with key, window, where the row is, reason and count.
    """
    from rivertwice.deliver import view_refused

    home = frame.settings.pipeline(name)
    refusals = [refusal for each in _chosen(frame, name, sink, again=False) for refusal in view_refused(home, each)]
    columns = ("sink", "key", "op", "source", "step", "times", "state", "last_at", "reason")

    def text() -> str:
        if not refusals:
            return f"{name}: no refused deliveries"
        more = f"\n... {len(refusals) - limit} more; --limit shows them" if len(refusals) > limit else ""
        return table_of(columns, refusals[:limit]) + more

    frame.emit(refusals, text)


@deliver.command(epilog=example("rivertwice deliver retry flight_delays --sink board"))
@name_argument()
@click.option("--sink", required=True, help="Whose refused deliveries.")
@click.option("--key", "keys", multiple=True, help="Only this key, as `deliver refused` shows it; can be repeated.")
@changes_unasked("rows at destinations", because="they get what is served")
@pass_frame
def retry(frame: Frame, name: str, sink: str, keys: tuple[str, ...]) -> None:
    """Deliver refused keys again, with what is served now.

    Keys that are refused again stay listed.
    """
    _ask(frame, name, sink, keys, what="retry", why="")


@deliver.command(epilog=example("rivertwice deliver discard flight_delays --sink board --reason 'test record'"))
@name_argument()
@click.option("--sink", required=True, help="Whose refused deliveries.")
@click.option("--key", "keys", multiple=True, help="Only this key, as `deliver refused` shows it; can be repeated.")
@reason_option()
@changes_unasked("a decision about refused deliveries", because="what is served stays, and a later change is delivered")
@pass_frame
def discard(frame: Frame, name: str, sink: str, keys: tuple[str, ...], reason: str | None) -> None:
    """Leave refused deliveries out for good.

    A later change of the same key is still delivered.
    """
    _ask(frame, name, sink, keys, what="discard", why=named_reason(reason))


def _ask(frame: Frame, name: str, sink: str, keys: tuple[str, ...], *, what: str, why: str) -> None:
    """Ask the sink's deliverer for it; deliver here if there is none."""
    from rivertwice.core import LeaseLostError, RequestError, utc_now
    from rivertwice.deliver import ask, make_deliverer, view_refused

    chosen = _chosen(frame, name, sink, again=False)
    home = frame.settings.pipeline(name)
    before = {refusal.key for refusal in view_refused(home, sink) if refusal.state == "open"}
    unknown = sorted(set(keys) - before)
    if unknown or not before:
        which = repr(unknown[0][:120]) if unknown else "any"
        message = (
            f"sink {sink} of {name} has no open refused delivery of {which}; see `rivertwice deliver refused {name}`"
        )
        raise RequestError(message)
    ask(home, sink, what, keys or None, why=why, by=getpass.getuser(), now=utc_now())
    finish = threading.Event()
    finish.set()
    try:
        make_deliverer(frame.settings, name, sink, chosen[sink]).run(threading.Event(), finish)
    except LeaseLostError:
        frame.emit({"asked": what}, f"{name}: asked; the process that delivers to {sink} does it when no batch waits")
        return
    left = [refusal for refusal in view_refused(home, sink) if refusal.state == "open"]
    count = len(keys or before)
    frame.emit(
        {"asked": what, "keys": count, "open": left},
        f"{name}: {what} of {count} done; {len(left)} refused deliveries are open",
    )


def _sinks(frame: Frame, name: str) -> dict[str, Delivery]:
    from rivertwice.core import RequestError, base_of
    from rivertwice.deliver import sinks_of

    if base_of(frame.known_pipeline(name)) != name:
        message = f"{name} is a version, and sinks belong to its pipeline: they have the rows of whichever version serves; name {base_of(name)}"
        raise RequestError(message)
    return dict(sinks_of(frame.settings, name))


# The fast path: rows of single records within milliseconds, which the agent sends while the stream is to run.


def _required(name: str | None) -> str:
    if name is None:
        message = "--fast is about one pipeline; name it"
        raise click.UsageError(message)
    return name


def _show_fast(frame: Frame, name: str) -> None:
    """Show whether the fast path runs, since when it has its present meaning, and how far it has certainly come."""
    from rivertwice.definition import load_definition
    from rivertwice.deliver import committed_offsets, read_fast_owner, read_runs

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


def _check_fast(frame: Frame, name: str) -> None:
    """Compare what the fast path must have sent, computed from the log, with its topic, as a set.

    Raises:
        SystemExit: they differ.
    """
    from rivertwice.cli.frame import DEFECT
    from rivertwice.deliver import compare_fast
    from rivertwice.engine import spark_on_demand

    with spark_on_demand(frame.settings, f"rivertwice-fast-check-{frame.known_pipeline(name)}") as spark:
        report = compare_fast(spark(), frame.settings, name)
    value = {**to_plain(report), "exact": report.exact}
    frame.emit(value, lambda: as_fields(value))
    if not report.exact:
        raise SystemExit(DEFECT)
