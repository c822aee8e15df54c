"""The table of settings, from which the reference is made, has those that the code reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from homes.project import REPOSITORY
from rivertwice.core.errors import ConfigError
from rivertwice.core.settings import KAFKA, KAFKA_PATHS, KAFKA_TEXTS, PATHS, TEXTS, VARIABLES, Settings

NAMES = {each.name for each in VARIABLES}
OF_EXAMPLES = {"RIVERTWICE_SMTP_PASSWORD", "RIVERTWICE_KAFKA_CONNECTED"}
"""What an example of a docstring calls a variable of the user's own."""


def test_every_variable_that_the_code_names_is_in_the_table() -> None:
    sources = (REPOSITORY / "src" / "rivertwice").rglob("*.py")
    named = {name for path in sources for name in re.findall(r"\bRIVERTWICE_[A-Z_]*[A-Z]\b(?!_)", path.read_text())}
    assert len(named) > 15
    assert named - NAMES - OF_EXAMPLES == set()


def test_the_keys_are_those_of_the_projects_file() -> None:
    keys = {each.key for each in VARIABLES if each.key}
    assert keys == {*PATHS, *TEXTS, *(f"{KAFKA}.{name}" for name in (*KAFKA_PATHS, *KAFKA_TEXTS))}
    for each in VARIABLES:
        if each.key:
            assert each.name == f"RIVERTWICE_{each.key.replace('.', '_').upper()}"


def test_settings_read_no_variable_that_the_table_lacks() -> None:
    class Noted(dict):
        def get(self, name, default=None):
            read.add(name)
            return default

    read = set()
    Settings.from_env(Noted())
    assert {name for name in read if name.startswith("RIVERTWICE")} <= NAMES
    assert "RIVERTWICE_HOME" in read


def test_spark_s_ui_is_on_or_off_and_a_child_has_the_same(tmp_path: Path) -> None:
    project = {"RIVERTWICE_PROJECT": str(tmp_path)}
    assert not Settings.from_env(project).spark_ui
    own = Settings.from_env({**project, "RIVERTWICE_SPARK_UI": "on"})
    assert own.spark_ui
    assert Settings.from_env(own.to_env()).spark_ui
    with pytest.raises(ConfigError, match="RIVERTWICE_SPARK_UI is 'yes', but only on and off are known"):
        Settings.from_env({**project, "RIVERTWICE_SPARK_UI": "yes"})
