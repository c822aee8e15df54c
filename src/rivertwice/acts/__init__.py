"""What a person may ask for: one module for each act, the same through every door (command line, Airflow, page, job, Python)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivertwice.core.face import lazy_names

if TYPE_CHECKING:
    from rivertwice.acts.act import OPERATE, REASON_LENGTH, REASON_PATTERN, Act, Plan, Request, World
    from rivertwice.acts.backfill import LATE, PlanRequest, RecomputeRequest
    from rivertwice.acts.catalogue import OF_DAG, OPERATED, do_stored, find_act
    from rivertwice.acts.forms import FormField, fields_of, parse_form, parse_request
    from rivertwice.acts.job import arguments_of
    from rivertwice.acts.project import ActingProject, open_to_act
    from rivertwice.acts.repair import FoundRepair, find_repair
    from rivertwice.acts.version import SwitchPlan, keep_parity
else:
    __getattr__ = lazy_names(__name__)

__all__ = [
    "LATE",
    "OF_DAG",
    "OPERATE",
    "OPERATED",
    "REASON_LENGTH",
    "REASON_PATTERN",
    "Act",
    "ActingProject",
    "FormField",
    "FoundRepair",
    "Plan",
    "PlanRequest",
    "RecomputeRequest",
    "Request",
    "SwitchPlan",
    "World",
    "arguments_of",
    "do_stored",
    "fields_of",
    "find_act",
    "find_repair",
    "keep_parity",
    "open_to_act",
    "parse_form",
    "parse_request",
]
