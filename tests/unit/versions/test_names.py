"""A version's name can stand wherever a pipeline's can, and its definition is a folder of the home."""

from __future__ import annotations

from pathlib import Path

import pytest

from homes.backfill import make_home
from rivertwice.core.errors import ConfigError, DefinitionError
from rivertwice.core.homes import require_pipeline
from rivertwice.core.installed import base_of, split_version, version_name
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import build_bundle
from rivertwice.definition.definition import load_definition


@pytest.mark.parametrize("name", ["p", "a-b_c9", "p@v2", "p@v10", "p@v9999"])
def test_a_name_or_a_version_of_it_names_a_pipeline(name: str) -> None:
    assert require_pipeline(name) == name
    assert version_name(*split_version(name)) == name
    assert base_of(name) == name.split("@")[0]


@pytest.mark.parametrize(
    "name", ["", "P", "p@v1", "p@v0", "p@v02", "p@v", "p@2", "p@v2/x", "../p", "p@v2\n", "p@v10000"]
)
def test_anything_else_names_none(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a pipeline"):
        require_pipeline(name)


def test_a_frozen_definition_comes_before_the_one_of_the_project(tmp_path: Path) -> None:
    settings = Settings(project=tmp_path / "project", home=tmp_path / "home")
    assert settings.definition_folder("p") == tmp_path / "project/pipelines/p"
    frozen = tmp_path / "home/definitions/p"
    frozen.mkdir(parents=True)
    assert settings.definition_folder("p") == frozen


def test_a_renamed_definition_has_the_same_meaning_under_another_name(tmp_path: Path) -> None:
    settings, _, _ = make_home(tmp_path)
    folder = settings.definitions / "p"
    (folder / "pipeline.yaml").write_text(
        (folder / "pipeline.yaml").read_text().replace("name: p", 'name: "p"  # ours')
    )
    old = build_bundle(folder)
    new = old.renamed("p@v2")
    assert (new.definition.name, new.fingerprint) == ("p@v2", old.fingerprint)
    assert new.id != old.id
    changed = [line for line in old.diff_to(new) if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ['-name: "p"  # ours', "+name: p@v2  # ours"]
    assert old.renamed("p") is old


def test_a_name_that_is_not_on_a_line_of_its_own_is_refused(tmp_path: Path) -> None:
    settings, _, _ = make_home(tmp_path)
    yaml = settings.definitions / "p" / "pipeline.yaml"
    yaml.write_text(yaml.read_text().replace("name: p\n", "name:\n  p\n"))
    assert load_definition(yaml.parent).name == "p"
    with pytest.raises(DefinitionError, match="write `name: p` on a separate line"):
        build_bundle(yaml.parent).renamed("p@v2")
