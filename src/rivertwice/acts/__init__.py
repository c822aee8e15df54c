"""What a person may ask for: one module for each act, the same through every door (command line, Airflow, page, job, Python)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.acts.act import CARE, OPERATE, Act, ActName, Plan, ReasonText, Request, World
    from rivertwice.acts.backfill import LATE, PlanRequest, RecomputeRequest
    from rivertwice.acts.catalogue import acts_of, do_stored, find_act
    from rivertwice.acts.forms import FormField, fields_of, parse_form, parse_request
    from rivertwice.acts.job import arguments_of
    from rivertwice.acts.project import ActingProject, open_to_act
    from rivertwice.acts.repair import FoundRepair, find_repair
    from rivertwice.acts.version import SwitchPlan, keep_parity
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
