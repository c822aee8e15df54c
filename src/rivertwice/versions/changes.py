"""The change file of a version: which differences from the rows that are served now are meant, and why. Read by the parity gate.

`pipelines/NAME/changes/v2.yaml` belongs to `NAME@v2`. It is not part of the definition: it may be corrected while the version runs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from rivertwice.core import DefinitionError, Settings, read_yaml, split_version
from rivertwice.definition import Definition, Strict, check_sql, describe
from rivertwice.versions.try_model import CHANGED, Expected, SchemaChange

FOLDER = "changes"
MAX_FILE_BYTES = 1_000_000
Reason = Field(min_length=1, description="Why it is meant, for the people who approve it.")


class ColumnsChange(Strict):
    """Columns that differ between the two results, by name."""

    added: tuple[str, ...] = Field(default=(), description="Columns that only the new result has.")
    gone: tuple[str, ...] = Field(default=(), description="Columns that only the old result has.")
    retyped: tuple[str, ...] = Field(default=(), description="Columns whose type is another one.")


class RowsChange(Strict):
    """Rows that are meant to differ."""

    change: Literal["changed", "only new", "only old"] = Field(
        default="changed", description="Whether both results have the row, or one of them alone."
    )
    columns: tuple[str, ...] = Field(default=(), description="Of a changed row: the columns that may differ; no other.")
    where: str | None = Field(
        default=None,
        description="Predicate of SQL over `old` and `new` (the two rows), the keys, `window_start` and `window_end`; "
        "without it every such row is meant.",
    )
    reason: str = Reason

    @model_validator(mode="after")
    def _named(self) -> RowsChange:
        if (self.change == CHANGED) != bool(self.columns):
            message = (
                "a changed row names the columns that may differ (columns: [...])"
                if self.change == CHANGED
                else f"a row that is {self.change} has no columns to name; leave columns out"
            )
            raise ValueError(message)
        return self


class ChangeFile(Strict):
    """The fields of `changes/vN.yaml`."""

    reason: str = Reason
    columns: ColumnsChange = Field(default_factory=ColumnsChange)
    rows: tuple[RowsChange, ...] = Field(default=(), description="The first one that has a row counts.")

    @model_validator(mode="before")
    @classmethod
    def _refuse_switch(cls, value: Any) -> Any:
        if isinstance(value, dict) and "switch" in value:
            message = "switch was removed: a person approves each switch of versions; remove the field"
            raise ValueError(message)
        return value

    def expected(self) -> tuple[Expected, ...]:
        """Return the declarations about rows."""
        return tuple(Expected(each.change, each.columns, each.where, each.reason) for each in self.rows)


NOTHING = ChangeFile(reason="nothing is declared")
"""Where there is no change file, no difference is meant."""


@dataclass(frozen=True)
class Declared:
    """What is declared of a version.

    Attributes:
        path: the change file; sha256: of its bytes, or "" if there is none.
    """

    path: Path
    sha256: str
    changes: ChangeFile


def changes_path(settings: Settings, version: str) -> Path:
    """Return the path of the change file of a version."""
    pipeline, number = split_version(version)
    return settings.definitions / pipeline / FOLDER / f"v{number}.yaml"


def read_changes(settings: Settings, version: str) -> Declared:
    """Return what is declared of a version; nothing, if it has no change file.

    Raises:
        DefinitionError: the file cannot be accepted; the message names field, value and remedy.
    """
    path = changes_path(settings, version)
    if not path.is_file():
        return Declared(path, "", NOTHING)
    data = path.read_bytes()
    if len(data) > MAX_FILE_BYTES:
        message = f"{path} has {len(data)} bytes, and {MAX_FILE_BYTES} are read; shorten it"
        raise DefinitionError(message)
    try:
        changes = ChangeFile.model_validate(read_yaml(data))
        for place, rule in enumerate(changes.rows):
            if rule.where is not None:
                check_sql(f"SELECT {rule.where}", f"{path}: rows.{place}.where", compared=True)
    except ValidationError as error:
        raise DefinitionError(describe(error, str(path), data, ChangeFile)) from None
    except (yaml.YAMLError, ValueError) as error:
        message = f"{path} is not YAML: {str(error)[:300]}; correct it"
        raise DefinitionError(message) from None
    return Declared(path, hashlib.sha256(data).hexdigest(), changes)


def columns_between(old: Definition, new: Definition, declared: ColumnsChange) -> ColumnsChange:
    """Return the columns that are meant to differ: those declared, and those that one definition names and the other does not. Pure."""
    before, after = ([*each.row_keys, *each.columns] for each in (old, new))
    added = tuple(dict.fromkeys((*declared.added, *(name for name in after if name not in before))))
    gone = tuple(dict.fromkeys((*declared.gone, *(name for name in before if name not in after))))
    return declared.model_copy(update={"added": added, "gone": gone})


def undeclared_columns(schema: SchemaChange, declared: ColumnsChange) -> tuple[str, ...]:
    """Return a sentence for each column that differs and is not declared, or is declared and does not differ. Pure."""
    found = {"added": set(schema.added), "gone": set(schema.gone), "retyped": set(schema.retyped)}
    said = {"added": set(declared.added), "gone": set(declared.gone), "retyped": set(declared.retyped)}
    sentences = []
    for change, names in found.items():
        sentences += [f"column {name} is {change}, which is not declared" for name in sorted(names - said[change])]
        sentences += [f"column {name} is declared as {change}, but it is not" for name in sorted(said[change] - names)]
    return tuple(sentences)
