"""What `airflow providers` lists of this package (entry point `apache_airflow_provider`)."""

from __future__ import annotations

from typing import Any

from rivertwice import __version__

NAME = "rivertwice"
_PACKAGE = "rivertwice.airflow"


def get_provider_info() -> dict[str, Any]:
    """Return the metadata in the form of Airflow's schema of providers."""
    return {
        "package-name": NAME,
        "name": NAME,
        "description": "One pipeline definition, streamed and recomputed; every differing row has a named cause.",
        "versions": [__version__],
        "integrations": [{"integration-name": NAME, "external-doc-url": "", "tags": ["software"]}],
        "operators": [{"integration-name": NAME, "python-modules": [f"{_PACKAGE}.operators"]}],
        "triggers": [{"integration-name": NAME, "python-modules": [f"{_PACKAGE}.triggers"]}],
        "extra-links": [f"{_PACKAGE}.operators.PipelineLink", f"{_PACKAGE}.operators.ReportLink"],
        "notifications": [f"{_PACKAGE}.alerts.AlertNotifier", f"{_PACKAGE}.alerts.RecoveryNotifier"],
    }
