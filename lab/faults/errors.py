"""Errors of the fault lab."""

from __future__ import annotations

from rivertwice.core.errors import RivertwiceError


class LabError(RivertwiceError):
    """The lab itself could not do what a case asked: nothing is known about the product."""

    reason = "lab"


class CaseFailedError(RivertwiceError):
    """What a case demands does not hold."""

    reason = "case_failed"


def require(holds: bool, message: str) -> None:
    """Raise CaseFailedError with `message` unless `holds`."""
    if not holds:
        raise CaseFailedError(message)
