"""How long the log keeps what is still needed, and what happens to records that it drops first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.retention.accept import accept_gap
    from rivertwice.retention.backlog import Backlog, HandOver
    from rivertwice.retention.handing_over import hand_over, plan_hand_over, view_backlog
    from rivertwice.retention.summary import (
        FORMAT,
        RetentionBrief,
        decide_archive,
        retention_file,
        summary_of,
        topics_in,
    )
    from rivertwice.retention.view import RetentionView, TopicView, view_retention
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
