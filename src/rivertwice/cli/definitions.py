"""pipelines, lint: the definitions of a project."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.frame import DEFECT, REFUSED, Frame, as_table, example, pass_frame
from rivertwice.cli.options import name_argument
from rivertwice.cli.warm import on_engine
from rivertwice.core import RequestError, absence_of, to_plain

if TYPE_CHECKING:
    from rivertwice.definition import LintFinding, TopicFacts


@click.command(epilog=example("rivertwice pipelines", "rivertwice pipelines --examples"))
@click.option("--examples", is_flag=True, help="The examples that `rivertwice init --example NAME` copies, instead.")
@pass_frame
def pipelines(frame: Frame, examples: bool) -> None:
    """List the pipelines that the project defines.

    Topics, window and watermarks of each are shown; of an example what it shows. Exit 1 if a definition cannot be loaded.
    """
    from rivertwice.definition import load_each

    folder = frame.settings.shipped("pipelines/examples") if examples else frame.settings.definitions
    definitions, broken = load_each(folder)
    if examples:
        shown = [{"name": name, "description": each.description} for name, each in definitions.items()]
        frame.emit(shown, lambda: as_table(("example", "what it shows"), [tuple(each.values()) for each in shown]))
        return
    rows = []
    for name, definition in definitions.items():
        streams = definition.streams.values() if definition.window.kind.has_watermark else []
        delays = ", ".join(str(source.watermark) for source in streams) or "none"
        rows.append((name, ", ".join(definition.topics), definition.window.text, delays, ", ".join(definition.keys)))
    value: list[Any] = [
        item.model_dump(mode="json", exclude={"transform_sql", "rows_sql", "fold_py"}) for item in definitions.values()
    ]
    value += [{"name": name, "error": error} for name, error in broken.items()]
    headers, none = ("pipeline", "topic", "window", "watermark", "keys"), f"none in {frame.settings.definitions}"
    frame.emit(value, lambda: as_table(headers, rows) if value else f"{none}; run it in the project, or give --project")
    frame.report_broken(broken)
    if broken:
        raise SystemExit(REFUSED)


# lint: what a definition promises, and the pitfalls it could meet.

LOG = logging.getLogger(__name__)
_LONGEST_MS = 100 * 365 * 86_400_000  # Kafka's longest lag is more than a duration can be


@click.command(
    epilog=example(
        "rivertwice lint",
        "rivertwice lint flight_delays",
        "rivertwice lint --without-spark",
        'rivertwice lint --statement "UPDATE stock SET level = level - :sold WHERE item = :item"',
    )
)
@name_argument(required=False)
@click.option(
    "--without-spark",
    is_flag=True,
    help="Start no Spark: what only Spark can check is `not checked`, unless it was checked before.",
)
@click.option(
    "--statement",
    metavar="SQL",
    help="Judge instead a statement that a receiver runs for each record: may it run twice? The text alone is read.",
)
@on_engine(lambda values: not (values["without_spark"] or values["statement"] or absence_of("pyspark")))
@pass_frame
def lint(frame: Frame, name: str | None, without_spark: bool, statement: str | None) -> None:
    """Check definitions with Spark and for known pitfalls.

    Without NAME all pipelines are checked. What each promises (its contract) is shown too.

    Every verdict is `holds` (it was checked), `broken`, `warns` (it costs something), or `not checked`, with the reason and the
    command that checks it.
    Works offline: what only Kafka knows is `not checked` then. Exit 3 if something is broken.
    """
    from rivertwice.definition import LintLevel, worst

    if statement is not None:
        if name is not None:
            message = f"--statement is judged by its text alone, so {name} says nothing about it; leave one of them out"
            raise RequestError(message)
        _lint_statement(frame, statement)
        return

    root = frame.settings.definitions
    names = frame.chosen_pipelines(name)
    value, texts, bad = [], [], False
    known = kafka_answers(frame)
    with nullcontext() if without_spark or absence_of("pyspark") else _spark(frame) as spark:
        for each in names:
            contract, findings = _lint_one(frame, root / each, spark, is_known=known)
            bad = bad or worst(findings) == LintLevel.BROKEN
            value.append(
                {"pipeline": each, "contract": contract, "findings": [to_plain(finding) for finding in findings]}
            )
            texts += [as_table(("promise", "value"), list(contract.items()), title=each)] if contract else [each]
            rows = [(finding.state, finding.check, finding.told, finding.remedy) for finding in findings]
            texts.append(as_table(("verdict", "pitfall", "found", "remedy, or what checks it"), rows))
    frame.emit(value, "\n".join(texts))
    if bad:
        raise SystemExit(DEFECT)


def _lint_statement(frame: Frame, statement: str) -> None:
    from rivertwice.definition import LintLevel
    from rivertwice.deliver import judge_statement

    found = judge_statement(statement)
    frame.emit(to_plain(found), "; ".join(part for part in (f"{found.state}: {found.told}", found.remedy) if part))
    if found.state == LintLevel.BROKEN:
        raise SystemExit(DEFECT)


def _spark(frame: Frame) -> AbstractContextManager[Callable[[], Any]]:
    from rivertwice.engine import spark_on_demand

    return spark_on_demand(frame.settings.with_local_spark(), "rivertwice-lint", quick=True)


def _lint_one(
    frame: Frame, folder: Path, spark: Callable[[], Any] | None, *, is_known: bool
) -> tuple[dict[str, str], list[LintFinding]]:
    """Return a definition's contract, empty if it cannot be loaded, and all findings."""
    from rivertwice.core import utc_now
    from rivertwice.definition import contract_of, lint_definition, lint_judgement
    from rivertwice.engine import judge_folder
    from rivertwice.quality import lint_suites

    judged = judge_folder(frame.settings, folder, spark, utc_now())
    findings = lint_judgement(judged)
    if judged.bundle is None:
        return {}, findings
    definition = judged.bundle.definition
    topics = {topic: _facts(frame, topic) if is_known else None for topic in definition.topics}
    pitfalls = lint_definition(definition, topics, judged.verdict)
    return contract_of(definition), [*findings, *pitfalls, *lint_suites(frame.settings, definition)]


def kafka_answers(frame: Frame) -> bool:
    """Say whether Kafka answers. It is asked once: a broker that is down would delay each question by its timeout."""
    from rivertwice.core import RivertwiceError
    from rivertwice.log import require_broker

    try:
        require_broker(frame.settings)
        from rivertwice.log import kafka  # Kafka's client, which is not needed if no broker can be reached

        kafka.cluster_id(frame.settings)
    except RivertwiceError as error:
        LOG.info("Kafka does not answer now: %s", error)
        return False
    return True


def _facts(frame: Frame, topic: str) -> TopicFacts | None:
    """Return what Kafka reports about a topic, or None if it does not answer or has no such topic."""
    from rivertwice.core import RivertwiceError
    from rivertwice.definition import TopicFacts
    from rivertwice.log import first_stamps, kafka, kept_for

    settings = frame.settings
    try:
        config = kafka.topic_config(settings, topic)
        begins, ends = kafka.begin_offsets(settings, topic), kafka.end_offsets(settings, topic)
        held = {partition: end - begins.get(partition, 0) for partition, end in ends.items()}
        busy = [partition for partition, count in held.items() if count]
        middles = first_stamps(settings, topic, {each: (begins[each] + ends[each]) // 2 for each in busy})
        firsts = first_stamps(settings, topic, {each: begins[each] for each in busy})
        lasts = first_stamps(settings, topic, {each: ends[each] - 1 for each in busy})
    except RivertwiceError as error:
        LOG.info("topic %s is not known now: %s", topic, error)
        return None
    return TopicFacts(
        partitions=len(ends),
        retention=kept_for(config),
        compacted="compact" in config.get("cleanup.policy", "delete"),
        compacted_after=timedelta(milliseconds=min(int(config.get("min.compaction.lag.ms", 0)), _LONGEST_MS)),
        held=held,
        middles_ms=middles,
        span_ms=max(lasts.values(), default=0) - min(firsts.values(), default=0),
    )
