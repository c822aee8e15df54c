"""A first load by the stream itself: the log as it was at the first start is read in few, large batches.

It is for definitions whose past no backfill can publish window by window: sessions, folds, several sources, `emit: updates`. The
batches run the stream's own plan, so the state at their end is the stream's own. A file of the pipeline's place,
`first_load/stream.json`, format 1, written once, says where the stream begins and up to where its batches are large. Whoever runs
the stream finds in the checkpoint how far it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from rivertwice.core import LostRaceError, PipelineHome, parse_iso, to_iso
from rivertwice.log import StoredOffsets
from rivertwice.storage import RecordStore, encode_json
from rivertwice.timeline.first_load import load_place, read_own
from rivertwice.timeline.lineage import Timeline

FORMAT = 1
RECORD = "stream.json"


@dataclass(frozen=True)
class StreamLoad:
    """Where a stream begins, and up to where its batches are large.

    Attributes:
        genesis: topic to partition to the first offset that the stream reads; Kafka may lack it, then the archive has it.
        until: topic to partition to offset: the log's end when the load was recorded.
    """

    pipeline: str
    bundle: str
    cluster_id: str
    topic_ids: Mapping[str, str]
    genesis: StoredOffsets
    until: StoredOffsets
    by: str
    noted_at: datetime

    @property
    def id(self) -> str:
        """`load-` and a hash of what it loads."""
        identity = [self.bundle, dict(self.topic_ids), self.genesis, self.until]
        return f"load-{hashlib.sha256(encode_json(identity)).hexdigest()[:12]}"

    @property
    def records(self) -> int:
        """How many records it loads."""
        return self.count_left(self.genesis)

    def count_left(self, position: StoredOffsets) -> int:
        """Return how many of its records are not read at a position; a partition that it does not name was not read."""
        return sum(
            max(0, int(end) - int(position.get(topic, {}).get(partition, self.genesis[topic].get(partition, 0))))
            for topic, ends in self.until.items()
            for partition, end in ends.items()
        )

    def has_read(self, position: StoredOffsets) -> bool:
        """Say whether all of its records are read at a position."""
        return self.count_left(position) == 0

    def require_begun_by(self, root: Timeline) -> None:
        """Check that the pipeline's first timeline begins where the load does.

        Raises:
            LostRaceError: a first start made it meanwhile, and it begins elsewhere.
        """
        if root.genesis != self.genesis:
            message = (
                f"timeline {root.timeline} of {self.pipeline} begins at {dict(root.genesis)}, and {self.id} says {dict(self.genesis)}: a "
                "first start made it while the load was recorded; records before it would be missing in every row, so the stream does "
                f"not start; remove {RECORD} in first_load/ of the pipeline, and it streams what Kafka has"
            )
            raise LostRaceError(message)

    def record(self, home: PipelineHome) -> bool:
        """Record it; return False if one is recorded already."""
        stored = {"format": FORMAT, "id": self.id, **asdict(self), "noted_at": to_iso(self.noted_at)}
        return RecordStore(load_place(home)).put_if_absent(RECORD, stored)

    @classmethod
    def load(cls, home: PipelineHome) -> StreamLoad | None:
        """Return the load of a pipeline by its stream; None if there is none.

        Raises:
            RequestError: its format is unknown.
            DamagedFileError: it is not what was written.
        """
        return read_own(home, RECORD, lambda data: cls(**{**data, "noted_at": parse_iso(data["noted_at"])}))
