"""Errors that no retry can cure, as Airflow knows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowFailException

from rivertwice.core import RivertwiceError


@contextmanager
def refusals() -> Iterator[None]:
    """Turn an error that no retry can cure into one that Airflow does not retry."""
    try:
        yield
    except RivertwiceError as error:
        if error.retryable:
            raise
        raise AirflowFailException(str(error)) from error
