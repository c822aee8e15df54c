"""Which DAG files, jobs and suites count: the project's own, else those that rivertwice brings along."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivertwice.core.errors import ConfigError
from rivertwice.core.installed import CLONE, is_clone
from rivertwice.core.settings import Settings


def test_a_project_without_its_own_uses_what_is_shipped(tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path / "home")
    assert settings.shipped("dags").is_dir()
    assert settings.shipped("spark_jobs/reconcile.py").read_text() == (CLONE / "spark_jobs/reconcile.py").read_text()


def test_a_project_s_own_counts(tmp_path: Path) -> None:
    own = tmp_path / "spark_jobs" / "reconcile.py"
    own.parent.mkdir()
    own.touch()
    settings = Settings(tmp_path, tmp_path / "home")
    assert settings.shipped("spark_jobs/reconcile.py") == own
    assert settings.shipped("spark_jobs/plan.py").parent != own.parent


def test_what_nobody_has_is_an_installation_that_is_not_whole(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spark_jobs/nosuch\.py .* install rivertwice again"):
        Settings(tmp_path, tmp_path / "home").shipped("spark_jobs/nosuch.py")


def test_downloads_are_the_user_s_unless_a_project_has_its_own(project: Path, tmp_path: Path) -> None:
    def build(folder: Path, **env: str) -> Path:
        return Settings.from_env({"RIVERTWICE_PROJECT": str(folder), "HOME": "/home/ann", **env}).build

    assert is_clone(project)
    assert build(project) == project / ".build"
    assert build(tmp_path) == Path("/home/ann/.cache/rivertwice/0.1.0")
    assert build(tmp_path, XDG_CACHE_HOME="/cache") == Path("/cache/rivertwice/0.1.0")
    assert build(project, RIVERTWICE_DOWNLOADS="/downloads") == Path("/downloads")
    (tmp_path / ".build").mkdir()
    assert build(tmp_path) == tmp_path / ".build"


def test_child_processes_use_the_same_downloads(tmp_path: Path) -> None:
    settings = Settings.from_env({"RIVERTWICE_PROJECT": str(tmp_path), "HOME": "/home/ann"})
    assert Settings.from_env(settings.to_env()).build == settings.build
