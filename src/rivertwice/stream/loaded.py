"""Begin a stream after what a first load by batch reads instead of it.

Once the load is recorded, every start of the pipeline does these steps until the head is there, for every requester:

1. Record the timeline, which begins where the load ends.
2. Publish no rows for the windows to load. They serve nothing, and nothing of what the stream makes of the part that it reads.
3. Move the head to the timeline.

A crash may come after any step; each is done once.
"""

from __future__ import annotations

from datetime import datetime

from rivertwice.core import LostRaceError, PipelineHome
from rivertwice.timeline import (
    RECORD,
    FirstLoad,
    Timeline,
    create_timeline,
    load_place,
    move_head,
    publications_of,
    publish,
    read_sequence,
    select_head,
)


def begin_after_load(home: PipelineHome, load: FirstLoad, now: datetime) -> None:
    """Let the timeline of a recorded load serve; see the module's steps. Nothing happens if it does, or did, already.

    Raises:
        LostRaceError: another process did a step at the same moment, and the same call again continues; or a first start that read
            the sequence before the load was recorded made a timeline of this name, which begins elsewhere.
    """
    if not create_timeline(home, load.first_timeline()):  # step 1
        _require_own(home, load)
    entries = read_sequence(home)
    if all(publication.backfill != load.cover for publication in publications_of(entries)):  # step 2
        seq = entries[-1].seq if entries else 0
        publish(home, load.covering(seq + 1).to_payload(), expected_seq=seq, now=now)
        entries = read_sequence(home)
    if select_head(entries) is None:  # step 3
        move_head(home, load.timeline, reason=f"first start, after {load.id}", expected_seq=entries[-1].seq, now=now)


def _require_own(home: PipelineHome, load: FirstLoad) -> None:
    """Check that the timeline of a load's name begins where the load ends."""
    begins = Timeline.load(home, load.timeline).genesis
    if begins != load.genesis:
        name, place = home.root.name, load_place(home)
        message = (
            f"timeline {load.timeline} of {name} begins at {begins}, and {load.id} says {load.genesis}: a first start made it while the load "
            f"was recorded; nothing of the load is published; remove {RECORD} in {place}, then `rivertwice start {name} --from-batch` loads "
            "again, or says that the stream began"
        )
        raise LostRaceError(message)
