"""lint: what a definition promises, and the pitfalls it could meet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from rivertwice.commands.frame import DEFECT, Frame, as_table, example, pass_frame, to_plain

if TYPE_CHECKING:
    from rivertwice.pipeline.lint import TopicFacts

LOG = logging.getLogger(__name__)


@click.command(epilog=example("rivertwice lint", "rivertwice lint flight_delays"))
@click.argument("name", required=False)
@pass_frame
def lint(frame: Frame, name: str | None) -> None:
    """Say what a definition promises (its contract) and check it against the well-known pitfalls of streams.

    Works offline; what only Kafka knows is `unknown` then. Exit 3 on a warning.
    """
    from rivertwice.pipeline.definition import load_all, load_definition
    from rivertwice.pipeline.lint import WARNING, contract_of, lint_definition, worst

    folder = frame.settings.definitions
    frame.chosen_pipelines(name)
    found = {name: load_definition(folder / frame.known_pipeline(name))} if name else load_all(folder)
    value, texts, bad = [], [], False
    for each, definition in found.items():
        topics = {source.topic: _facts(frame, source.topic) for source in definition.sources.values()}
        findings = lint_definition(definition, topics)
        bad = bad or worst(findings) == WARNING
        contract = contract_of(definition)
        value.append({"pipeline": each, "contract": contract, "findings": [to_plain(one) for one in findings]})
        texts.append(as_table(("promise", "value"), list(contract.items()), title=each))
        rows = [(one.state, one.check, one.told, one.remedy) for one in findings]
        texts.append(as_table(("", "pitfall", "found", "remedy"), rows))
    frame.emit(value, "\n".join(texts))
    if bad:
        raise SystemExit(DEFECT)


def _facts(frame: Frame, topic: str) -> TopicFacts | None:
    """Return what Kafka says of a topic, or None if it does not answer or has no such topic."""
    from rivertwice.errors import RivertwiceError
    from rivertwice.log import kafka
    from rivertwice.log.retention import kept_for
    from rivertwice.pipeline.lint import TopicFacts

    try:
        config = kafka.topic_config(frame.settings, topic)
        partitions = len(kafka.end_offsets(frame.settings, topic))
    except RivertwiceError as error:
        LOG.info("topic %s is not known now: %s", topic, error)
        return None
    return TopicFacts(partitions, kept_for(config), "compact" in config.get("cleanup.policy", "delete"))
