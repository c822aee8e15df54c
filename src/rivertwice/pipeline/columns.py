"""How a result column of the stream is compared with a recompute."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rivertwice.pipeline.strict import Strict


class OutputColumn(Strict):
    """How a result column of the stream is compared with a recompute."""

    compare: Literal["exact", "tolerance"] = "exact"
    tolerance: float | None = Field(default=None, ge=0, description="Largest absolute difference that counts as equal.")

    @model_validator(mode="after")
    def _declared(self) -> Self:
        if (self.compare == "tolerance") != (self.tolerance is not None):
            message = "tolerance is given exactly when compare is 'tolerance'; write both or neither"
            raise ValueError(message)
        return self


def same_value(first: Any, second: Any, tolerance: float | None) -> bool:
    """Say whether two values of a column count as equal; two NaN do."""
    if first is None or second is None:
        return first is second
    if first == second or (first != first and second != second):
        return True
    return tolerance is not None and abs(float(first) - float(second)) <= tolerance
