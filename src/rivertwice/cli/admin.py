"""admin: what the product does by itself, or what is needed rarely; the larger ones have their own modules."""

from __future__ import annotations

from typing import Any

import click

from rivertwice.cli.archive import archive, retention
from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import DEFECT, Frame, FriendlyGroup, as_table, example, pass_frame, say
from rivertwice.cli.options import name_argument
from rivertwice.cli.privacy import privacy
from rivertwice.cli.repair import repair
from rivertwice.cli.schemas import schema
from rivertwice.core import to_plain, utc_now


@click.group(cls=FriendlyGroup, epilog=example("rivertwice admin topics", "rivertwice admin upkeep flight_delays"))
def admin() -> None:
    """Keep topics, schemas, archive and tables; erase a key.

    None of it is needed every day: `rivertwice up` creates the topics, and the agent keeps archive and tables.
    """


for command in (archive, privacy, repair, retention, schema):
    admin.add_command(command)


@admin.command(epilog=example("rivertwice admin topics"))
@changes_unasked("topics", because="those that exist stay as they are")
@pass_frame
def topics(frame: Frame) -> None:
    """Create the topics of all pipelines that are absent.

    It waits for Kafka first. `rivertwice up` does the same; this is for a Kafka that is not the embedded one, once per deployment. A topic that exists
    is left as it is; one whose number of partitions differs from its definition is refused. Of a pattern of topics it says which have joined, and by which
    numbers their partitions are known.
    """
    from rivertwice.definition import create_topics, load_all
    from rivertwice.log import TopicSets, await_kafka

    await_kafka(frame.settings)
    definitions = load_all(frame.settings.definitions).values()
    partitions: dict[str, object] = dict(create_topics(frame.settings, definitions))
    for pattern, each in TopicSets.load(frame.settings, (topic for one in definitions for topic in one.topics)).items():
        partitions[pattern] = {f"{part.topic}/{part.partition}": number for part, number in each.numbers.items()}
    rows = [(topic, _described(value)) for topic, value in sorted(partitions.items())]
    frame.emit(partitions, lambda: as_table(("topic", "partitions"), rows))


def _described(partitions: object) -> str:
    """Return a topic's number of partitions, or which partition of which topic has each number of a pattern."""
    if not isinstance(partitions, dict):
        return str(partitions)
    return ", ".join(f"{number}: {part}" for part, number in partitions.items()) or "none has joined"


@admin.command(epilog=example("rivertwice admin upkeep flight_delays"))
@name_argument()
@changes_unasked("files of tables", because="their rows stay, and the agent does the same")
@pass_frame
def upkeep(frame: Frame, name: str) -> None:
    """Merge small files and delete those no longer used.

    It works on NAME's tables; a file is used if a commit of the last hours names it. Results never change. Verdicts and causes of reconciles older than RIVERTWICE_VERDICTS_KEPT (90 days) are removed, except for those that a newer run
    builds on. The agent does the same after every 200 batches and every six hours; the stream may run meanwhile.
    """
    from rivertwice.deliver import tables_behind
    from rivertwice.timeline import keep_up

    settings = frame.settings
    done = keep_up(
        settings.pipeline(frame.known_pipeline(name)),
        now=utc_now(),
        verdicts_kept=settings.verdicts_kept,
        unswept=tables_behind(settings, name),
    )

    def text() -> str:
        if not done:
            return "upkeep runs already; nothing was done"
        return "\n".join(
            f"{upkeep_report.table:<12} {upkeep_report.files_before} to {upkeep_report.files_after} files, {upkeep_report.deleted} deleted ({upkeep_report.note})"
            for upkeep_report in done
        )

    frame.emit(done, text)


@admin.command(
    epilog=example("rivertwice admin rebuild flight_delays", "rivertwice admin rebuild flight_delays --compare")
)
@name_argument()
@click.option(
    "--compare",
    is_flag=True,
    help="Also compare all rows before and after; exit 3 if they differ. All are read for it.",
)
@changes_unasked("the served table", because="the rows are those that it has")
@pass_frame
def rebuild(frame: Frame, name: str, compare: bool) -> None:
    """Build what NAME serves again, from all its rows.

    `served` and `provisional` are built from the changelog and the corrections. The agent keeps them by what changed, which gives the same rows; it needs no rebuild. The stream may run meanwhile.
    """
    from rivertwice.agent import definition_of_head
    from rivertwice.core import RequestError
    from rivertwice.timeline import export_sha256, rebuild_served

    home = frame.settings.pipeline(frame.known_pipeline(name))
    definition = definition_of_head(frame.settings, name)
    kept = rebuild_served(home, definition)
    if kept.stamp is None:
        message = f"{name} has no committed batch yet, so there is nothing to serve; wait for its first"
        raise RequestError(message)
    before = export_sha256(home) if compare else None
    report = rebuild_served(home, definition, force=True)
    after = export_sha256(home) if compare else None
    is_compared = compare and report.stamp == kept.stamp
    value: dict[str, Any] = {
        **to_plain(report),
        "sha256": after,
        "sha256_before": before,
        "is_same": before == after if is_compared else None,
    }

    def text() -> str:
        stamp = report.stamp
        shown = "" if stamp is None else f" as of sequence {stamp.sequence}, batch {stamp.batch} of {stamp.timeline}"
        lines = [f"{report.rows} rows{shown}, {report.published} of them from publications"]
        if compare and not is_compared:
            lines.append("not compared: a batch or a publication came in between; do it again")
        elif compare:
            lines.append("the rows are those of before" if before == after else "the rows are not those of before")
        return "\n".join(lines)

    frame.emit(value, text)
    if value["is_same"] is False:
        raise SystemExit(DEFECT)


@admin.command(
    epilog=example(
        'eval "$(rivertwice admin completion bash)"',
        "rivertwice admin completion bash > ~/.local/share/bash-completion/completions/rivertwice",
        "rivertwice admin completion zsh > ~/.zfunc/_rivertwice",
        "rivertwice admin completion fish > ~/.config/fish/completions/rivertwice.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands in a shell.

    Verbs and options are completed, and the names of pipelines, versions, savepoints, tables and routes of the project and home
    that are set where the shell stands.
    """
    from click.shell_completion import get_completion_class

    from rivertwice.core import ServiceError

    made = get_completion_class(shell)
    if made is None:
        message = f"click has no completion for {shell}, so there is no script; use bash, zsh or fish"
        raise ServiceError(message)
    say(made(ctx.find_root().command, {}, "rivertwice", "_RIVERTWICE_COMPLETE").source())
