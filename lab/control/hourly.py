"""The usual batch job of S52: once an hour it reads what the log has, and blocks the cards that were charged abroad.

It knows what the stream's guard knows (`pipelines/examples/stolen_card`): the country of a card's first charge is its home. What it
cannot do is to refuse a charge between two of its runs.

Usage: python -m lab.control.hourly --bootstrap HOST:PORT --topic NAME --folder FOLDER --at INSTANT
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

PATIENCE_S = 30


@dataclass(frozen=True)
class Blocked:
    """A card that a run blocks.

    Attributes:
        minutes: from its first charge abroad to the run. charges, amount: what passed abroad by then.
    """

    card_id: str
    minutes: float
    charges: int
    amount: str


def read_charges(bootstrap: str, topic: str) -> Iterator[dict[str, Any]]:
    """Yield every charge that the topic has now, partition by partition."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "hourly", "enable.auto.commit": False})
    try:
        for part in reader.list_topics(topic, PATIENCE_S).topics[topic].partitions:
            _, end = reader.get_watermark_offsets(TopicPartition(topic, part), PATIENCE_S)
            reader.assign([TopicPartition(topic, part, 0)])
            read = 0
            while read < end:
                message = reader.poll(PATIENCE_S)
                if message is None or message.error() is not None:
                    problem = f"partition {part} of {topic} gave no record at {read} of {end}"
                    raise RuntimeError(problem)
                read = int(message.offset() or 0) + 1
                yield json.loads(message.value() or b"{}")
    finally:
        reader.close()


def find_stolen(charges: Iterable[dict[str, Any]], before: frozenset[str], at: datetime) -> list[Blocked]:
    """Return the cards to block at `at`: those charged abroad before it that no earlier run blocked."""
    homes: dict[str, str] = {}
    abroad: dict[str, list[dict[str, Any]]] = {}
    for charge in sorted(charges, key=lambda one: datetime.fromisoformat(one["at"])):
        if datetime.fromisoformat(charge["at"]) >= at or charge["card_id"] in before:
            continue
        if charge["country"] != homes.setdefault(charge["card_id"], charge["country"]):
            abroad.setdefault(charge["card_id"], []).append(charge)
    return [
        Blocked(
            card,
            (at - datetime.fromisoformat(passed[0]["at"])).total_seconds() / 60,
            len(passed),
            str(sum(Decimal(str(one["amount"])) for one in passed)),
        )
        for card, passed in sorted(abroad.items())
    ]


def main() -> int:
    """Run the job once, as of an instant; print what it blocks as JSON."""
    parser = argparse.ArgumentParser(prog="lab.control.hourly", description=__doc__)
    for name in ("--bootstrap", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--folder", required=True, type=Path, help="where it keeps the cards that it blocked")
    parser.add_argument("--at", required=True, type=datetime.fromisoformat, help="the hour of the run, with a zone")
    given = parser.parse_args()
    file = given.folder / "blocked.json"
    before = frozenset(json.loads(file.read_text())) if file.exists() else frozenset()
    found = find_stolen(read_charges(given.bootstrap, given.topic), before, given.at)
    given.folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(sorted(before | {one.card_id for one in found})))
    sys.stdout.write(json.dumps([asdict(one) for one in found]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
