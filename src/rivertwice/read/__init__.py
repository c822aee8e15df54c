"""What reads and changes nothing: results, explain, and everything the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.read.alerts import describe_alerts, read_past
    from rivertwice.read.backfills import BackfillList, list_of_backfills
    from rivertwice.read.cell_rows import explain_for_page, parse_cell_key, read_cell
    from rivertwice.read.definition_page import view_definition
    from rivertwice.read.explain import explain_row
    from rivertwice.read.explain_text import describe
    from rivertwice.read.export import export_rows
    from rivertwice.read.find import find_rows
    from rivertwice.read.heatmap import HeatmapQuery
    from rivertwice.read.jobs import Job
    from rivertwice.read.lateness import read_lateness
    from rivertwice.read.logs import describe_log
    from rivertwice.read.map import draw_map
    from rivertwice.read.newest import newest_rows
    from rivertwice.read.overview import NowView, OverviewRows, describe_summary
    from rivertwice.read.project import Project, open_project
    from rivertwice.read.query import QueryBounds, run_query
    from rivertwice.read.results_page import view_results
    from rivertwice.read.rows_page import RowsQuery
    from rivertwice.read.savepoints import describe_savepoints
    from rivertwice.read.selection import describe_backfill, preview_backfill
    from rivertwice.read.series import read_curves
    from rivertwice.read.side_rows import describe_late, describe_letters, describe_one, sample_to_discard
    from rivertwice.read.timelines import describe_versions, view_timelines
    from rivertwice.read.trouble import describe_correctness
    from rivertwice.read.week import WeekReport
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
