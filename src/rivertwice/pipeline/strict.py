"""The base of all parts of a definition."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A part that cannot be changed and takes no field that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
