"""What is damaged or must go: repair of tables and of windows, erasure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.upkeep.damage_search import find_damage, require_damage_on_s3
    from rivertwice.upkeep.erase import ErasurePlan, begin_erasure, new_erasure, plan_erasure, resume_erasure
    from rivertwice.upkeep.erasure_record import Erasure, erased_topics, load_erasure, read_erasures
    from rivertwice.upkeep.repair_archives import look_at_archives
    from rivertwice.upkeep.repair_tables import repair
    from rivertwice.upkeep.window_repairs import (
        Decision,
        Proposal,
        RepairOutcome,
        RepairRecord,
        Repairs,
        count_rows,
        count_rows_in,
        decide,
        find_proposal,
        plan_approved,
        sessions_still_differ,
    )
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
