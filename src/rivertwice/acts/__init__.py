"""What a person may ask for: one module for each act, the same through every door (command line, Airflow, page, job, Python)."""

from rivertwice.acts.act import Act, Plan, Request, World
from rivertwice.acts.catalogue import ACTS, OF_DAG, OPERATED, do_stored, find_act
from rivertwice.acts.forms import FormField, fields_of, parse_form, parse_request

__all__ = [
    "ACTS",
    "OF_DAG",
    "OPERATED",
    "Act",
    "FormField",
    "Plan",
    "Request",
    "World",
    "do_stored",
    "fields_of",
    "find_act",
    "parse_form",
    "parse_request",
]
