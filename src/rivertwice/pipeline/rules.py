"""Row rules: typed YAML, compiled to Columns by `decode`. Their text never reaches a SQL expression."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Scalar = bool | int | str


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$", description="Named in the dead letter's detail.")
    field: str = Field(description="The field of the source's schema that the rule judges.")


class NotNull(_Rule):
    """The field has a value."""

    rule: Literal["not_null"]


class InSet(_Rule):
    """The field, if it has a value, is one of `values`."""

    rule: Literal["in_set"]
    values: list[Scalar] = Field(min_length=1, max_length=1000)


class Range(_Rule):
    """The field, if it has a value, is between `min` and `max`, both included."""

    rule: Literal["range"]
    min: int | None = None
    max: int | None = None

    @model_validator(mode="after")
    def _bounds(self) -> Range:
        if self.min is None and self.max is None:
            message = f"rule {self.name!r} has neither min nor max, so it would accept all; give at least one"
            raise ValueError(message)
        if self.min is not None and self.max is not None and self.min > self.max:
            message = f"rule {self.name!r} has min {self.min} above max {self.max}, so it would refuse every row"
            raise ValueError(message)
        return self


class Pattern(_Rule):
    """The field, if it has a value, matches the regular expression from its first to its last character."""

    rule: Literal["pattern"]
    pattern: str = Field(min_length=1, max_length=200)

    @model_validator(mode="after")
    def _compiles(self) -> Pattern:
        try:
            re.compile(self.pattern)
        except re.error as error:
            message = f"rule {self.name!r}: {self.pattern!r} is no regular expression ({error}); correct it"
            raise ValueError(message) from None
        return self


RecordRule = Annotated[NotNull | InSet | Range | Pattern, Field(discriminator="rule")]
