"""The change file: what it says, what it must say, and what of the columns it must have named."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivertwice.core.errors import DefinitionError
from rivertwice.core.settings import Settings
from rivertwice.versions.changes import ColumnsChange, changes_path, read_changes, undeclared_columns
from rivertwice.versions.try_model import Expected, Retyped, SchemaChange

GOOD = """
reason: the mean counted early departures as negative
columns: {added: [worst]}
rows:
  - {columns: [mean], where: "new.mean >= old.mean", reason: absolute values}
  - {change: only new, where: "k = 'x'", reason: x was filtered}
"""


def write(folder: Path, text: str) -> Settings:
    settings = Settings(project=folder, home=folder / "home")
    path = changes_path(settings, "p@v2")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return settings


def test_the_file_of_a_version_declares_columns_and_rows(tmp_path: Path) -> None:
    settings = write(tmp_path, GOOD)
    assert changes_path(settings, "p@v2") == tmp_path / "pipelines/p/changes/v2.yaml"
    declared = read_changes(settings, "p@v2")
    assert declared.changes.columns.added == ("worst",)
    assert declared.changes.expected() == (
        Expected("changed", ("mean",), "new.mean >= old.mean", "absolute values"),
        Expected("only new", (), "k = 'x'", "x was filtered"),
    )
    assert len(declared.sha256) == 64
    assert read_changes(settings, "p@v3").changes.expected() == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rows: []", "reason"),
        ("reason: r\nrows: [{reason: all of it}]", "names the columns that may differ"),
        ("reason: r\nrows: [{change: only old, columns: [a], reason: r}]", "leave columns out"),
        ("reason: r\nrows: [{columns: [a], reason: ''}]", "reason"),
        ("reason: r\npercent: 3", "percent"),
        ("reason: [", "is not YAML"),
        ("- 1", "v2.yaml"),
        (
            "reason: r\nswitch: automatic",
            "line 2, column 1: switch was removed: a person approves each.*remove the field",
        ),
    ],
)
def test_a_file_that_says_too_little_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        read_changes(write(tmp_path, text), "p@v2")


@pytest.mark.proves("howto-upgrade.md#a-new-version-beside-the-old-one")
def test_each_column_that_differs_must_be_declared_and_the_other_way_round() -> None:
    schema = SchemaChange(added={"a": "int"}, gone={"b": "int"}, retyped={"c": Retyped("int", "bigint")})
    assert undeclared_columns(schema, ColumnsChange(added=("a",), gone=("b",), retyped=("c",))) == ()
    assert undeclared_columns(schema, ColumnsChange(added=("z",), retyped=("c",))) == (
        "column a is added, which is not declared",
        "column z is declared as added, but it is not",
        "column b is gone, which is not declared",
    )
