"""Two definitions over one part of the log: try, advise, compare, switch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.versions.accept import Exchange, accept_differences, look_at_exchange
    from rivertwice.versions.advise import AdviceRequest, advise_delays
    from rivertwice.versions.advise_model import Advice
    from rivertwice.versions.begin import begin_version, drop_version, find_wanted, require_version, way_of
    from rivertwice.versions.case_from_log import CutRequest, cut_case
    from rivertwice.versions.comparisons import (
        StoredComparison,
        find_comparison,
        forget_comparisons,
        new_run,
        newest_comparison,
        require_valid,
        store_comparison,
    )
    from rivertwice.versions.model import ExcludedWindows, Parity, Proof, Step
    from rivertwice.versions.parity import compare_versions
    from rivertwice.versions.plan import VersionPlan, plan_version, require_readable
    from rivertwice.versions.serve import Switched, publications_not_counted, publications_since, serve_version
    from rivertwice.versions.switching import Choice, choice_of, choose_version
    from rivertwice.versions.try_model import LAST, Comparison, Example, SchemaChange, Trial, TrialRequest
    from rivertwice.versions.try_run import try_definition
    from rivertwice.versions.view import VersionView, view_versions
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
