"""Every YAML file that a person writes is read in no time, whatever is in it, or refused with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from homes.project import FLIGHTS, make_project, replace_text
from rivertwice.cli.main import cli
from rivertwice.core.errors import DefinitionError
from rivertwice.core.yaml_text import MOST_VALUES, UnreadableYamlError, compose_yaml, read_yaml
from rivertwice.engine.case_files import load_case

LINES = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]" for n in range(20)]
BOMB = "\n".join(LINES) + "\n"
MERGED = "\n".join(f"a{n}: &a{n} {{b{n}: 1, <<: [{', '.join([f'*a{n - 1}'] * 9 if n else [])}]}}" for n in range(20))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, f"more than {MOST_VALUES} values"),
        (MERGED, f"more than {MOST_VALUES} values"),
        ("a: &a [*a]", "within what it is the name of"),
        ("[" * 5_000, "too deep"),
        ("a: 2026-99-99", "cannot be read"),
        ("a: " + "9" * 5_000, "cannot be read"),
        ("? [a]\n: 1\n? {b: 1}\n: 2", "unhashable"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(yaml.YAMLError, match=why):
        read_yaml(text)


def test_aliases_that_stand_for_little_are_read() -> None:
    assert read_yaml("a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a, y: 2}") == {
        "a": {"x": 1},
        "b": [{"x": 1}, {"x": 1}],
        "c": {"x": 1, "y": 2},
    }
    assert (read_yaml(""), compose_yaml("")) == (None, None)


plain: Any = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


@given(st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner), max_leaves=20))
def test_a_value_is_what_yaml_reads(value: Any) -> None:
    text = yaml.safe_dump(value)
    assert read_yaml(text) == yaml.safe_load(text) == value


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        expected = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError):
        with pytest.raises(yaml.YAMLError):
            read_yaml(text)
    else:
        try:
            found = read_yaml(text)
        except UnreadableYamlError:
            return
        assert repr(found) == repr(expected)


@pytest.mark.parametrize("file", ["pipelines/flight_delays/pipeline.yaml", "rivertwice.yaml"])
def test_no_command_hangs_on_a_file_of_aliases(tmp_path: Path, file: str) -> None:
    settings = make_project(tmp_path, {"flight_delays": FLIGHTS})
    path = settings.project / file
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(BOMB)
    options = ["--output", "json", "--project", str(settings.project), "--home", str(settings.home)]
    result = CliRunner().invoke(cli, [*options, "lint", "flight_delays", "--without-spark"])
    assert result.exit_code in (1, 3), result.output
    assert f"more than {MOST_VALUES} values" in result.output
    assert str(path) in result.output


def test_a_case_of_aliases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "late.yaml").write_text(BOMB)
    with pytest.raises(DefinitionError, match=f"late.yaml.*more than {MOST_VALUES} values"):
        load_case(tmp_path / "late.yaml")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("topic: flights", "topic: __consumer_offsets", "Kafka's own; name another topic"),
        ("topic: flights", "topic: rivertwice-positions", "rivertwice's own; name another topic"),
        ("emit: final", "emit: final\ndeliver: {p: {to: postgres, table: pg_catalog.x, guarantee: effectively_once}}", "PostgreSQL keeps"),
        ("emit: final", "emit: final\ndeliver: {p: {to: postgres, table: a.rivertwice_positions, guarantee: effectively_once}}", "rivertwice keeps"),
        ("emit: final", "emit: final # \u202e etirw", "U+202E changes the direction"),
    ],
)  # fmt: skip
def test_a_reserved_name_and_a_hidden_direction_are_refused_where_they_stand(
    tmp_path: Path, old: str, new: str, why: str
) -> None:
    settings = make_project(tmp_path, {"flight_delays": FLIGHTS})
    path = settings.definitions / "flight_delays" / "pipeline.yaml"
    replace_text(path, old, new)
    options = ["--output", "json", "--project", str(settings.project), "--home", str(settings.home)]
    result = CliRunner().invoke(cli, [*options, "lint", "flight_delays", "--without-spark"])
    assert result.exit_code == 3
    said = json.dumps(json.loads(result.stdout), ensure_ascii=False)
    assert why in said
    assert "pipeline.yaml: line " in said
