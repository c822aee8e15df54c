"""Result rows in other systems: sinks, and the fast path."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.deliver.aside import AsideStore, ask, read_aside, rename_asked, sinks_with_aside
    from rivertwice.deliver.check import Checked, check_sink
    from rivertwice.deliver.deliver import Delivered, make_deliverer
    from rivertwice.deliver.fast import committed_offsets, read_fast_owner, read_runs
    from rivertwice.deliver.fast_compare import compare_fast
    from rivertwice.deliver.note import Note, noted_sinks, only_deliverer, read_note, write_note
    from rivertwice.deliver.refusals import AsideEntry
    from rivertwice.deliver.statement import judge_statement
    from rivertwice.deliver.status import SinkView, sinks_of, tables_behind, view_delivery, view_refused
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
