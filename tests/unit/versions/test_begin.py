"""A version begins and is given up: each step is done once, and the definition that serves stays what it was."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pytest

from homes.backfill import make_home
from homes.project import replace_text
from rivertwice.backfill.load_state import hold_load
from rivertwice.core.errors import LostRaceError, RequestError
from rivertwice.core.locks import lock
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle, build_bundle, load_bundle
from rivertwice.stream.lease import lock_file
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.version_records import hold_versions, read_versions, record_version
from rivertwice.versions import begin
from rivertwice.versions.begin import begin_version, drop_version, find_wanted

NOW = datetime(2026, 11, 26, tzinfo=UTC)


class KilledError(Exception):
    """The process ends here."""


def changed_project(folder: Path) -> tuple[Settings, Bundle]:
    """Return a project whose stream runs one definition, and whose files have another one."""
    settings, _, old = make_home(folder)
    change(settings, 1)
    return settings, old


def change(settings: Settings, number: int) -> None:
    """Give the definition in the project another meaning."""
    sql = settings.definitions / "p" / "transform.sql"
    sql.write_text(sql.read_text().replace("count(*)", f"{number} + count(*)"))


def test_a_version_freezes_both_definitions(tmp_path: Path) -> None:
    settings, old = changed_project(tmp_path)
    version = begin_version(settings, "p", by="test", now=NOW)
    assert (version.name, version.beside, version.number) == ("p@v2", "p", 2)
    assert "transform" in version.changed
    assert read_versions(settings.pipeline("p")) == [version]
    assert build_bundle(settings.definition_folder("p")).id == old.id
    new = build_bundle(settings.definition_folder("p@v2"))
    assert (new.id, new.definition.name) == (version.bundle, "p@v2")
    assert load_bundle(settings.pipeline("p@v2").bundles, version.bundle).fingerprint == new.fingerprint
    assert begin_version(settings, "p", by="again", now=NOW) == version


@pytest.mark.parametrize(("owner", "step"), [(Bundle, "save"), (begin, "record_version"), (Bundle, "write_folder")])
@pytest.mark.parametrize("after", [False, True])
def test_a_version_that_was_cut_off_is_continued(tmp_path: Path, owner: object, step: str, after: bool) -> None:
    settings, old = changed_project(tmp_path)
    real = getattr(owner, step)

    def killed(*arguments: object) -> None:
        if after:
            real(*arguments)
        raise KilledError

    with mock.patch.object(owner, step, killed), pytest.raises(KilledError):
        begin_version(settings, "p", by="test", now=NOW)
    version = begin_version(settings, "p", by="test", now=NOW)
    assert [each.name for each in read_versions(settings.pipeline("p"))] == ["p@v2"]
    assert build_bundle(settings.definition_folder("p")).id == old.id
    assert build_bundle(settings.definition_folder("p@v2")).id == version.bundle


def test_one_version_at_a_time_is_under_way(tmp_path: Path) -> None:
    settings, _ = changed_project(tmp_path)
    begin_version(settings, "p", by="test", now=NOW)
    change(settings, 7)
    with pytest.raises(RequestError, match="p@v2 is under way, with another definition"):
        find_wanted(settings, "p")
    drop_version(settings, "p@v2", by="test", now=NOW)
    assert begin_version(settings, "p", by="test", now=NOW).name == "p@v3"


def test_a_dropped_version_leaves_nothing_and_is_still_known(tmp_path: Path) -> None:
    settings, _ = changed_project(tmp_path)
    begin_version(settings, "p", by="test", now=NOW)
    home = settings.pipeline("p@v2")
    write_intent(home, "stopped", "test", NOW)
    drop_version(settings, "p@v2", by="test", now=NOW)
    assert not home.root.exists()
    assert settings.definition_folder("p") == settings.definitions / "p"
    (version,) = read_versions(settings.pipeline("p"))
    assert version.dropped_at == NOW
    assert drop_version(settings, "p@v2", by="again", now=NOW).name == "p@v2"
    with pytest.raises(RequestError, match=r"p@v7 is not a version of p; there are: p@v2"):
        drop_version(settings, "p@v7", by="test", now=NOW)


def test_what_gives_the_same_results_is_no_new_version(tmp_path: Path) -> None:
    settings, _, _ = make_home(tmp_path)
    with pytest.raises(RequestError, match="gives the same results"):
        find_wanted(settings, "p")
    replace_text(settings.definitions / "p" / "transform.sql", "SELECT", "-- said again\nSELECT")
    with pytest.raises(RequestError, match="gives the same results"):
        find_wanted(settings, "p")


def test_a_pipeline_that_never_ran_has_no_version(tmp_path: Path) -> None:
    settings, home, _ = make_home(tmp_path)
    empty = Settings(project=settings.project, home=tmp_path / "empty")
    with pytest.raises(RequestError, match=r"p never ran.*`rivertwice start p`"):
        find_wanted(empty, "p")
    assert read_versions(empty.pipeline("p")) == []
    assert home.root.exists()


def test_a_number_that_another_process_took_is_not_taken_again(tmp_path: Path) -> None:
    settings, _ = changed_project(tmp_path)
    version = begin_version(settings, "p", by="test", now=NOW)
    assert not record_version(settings.pipeline("p"), version)


def test_a_version_is_begun_and_dropped_by_one_process_at_a_time(tmp_path: Path) -> None:
    settings, _ = changed_project(tmp_path)
    begin_version(settings, "p", by="test", now=NOW)
    with hold_versions(settings.pipeline("p")):
        with pytest.raises(LostRaceError, match="begins, drops or switches a version of p"):
            begin_version(settings, "p", by="test", now=NOW)
        with pytest.raises(LostRaceError, match="begins, drops or switches a version of p"):
            drop_version(settings, "p@v2", by="test", now=NOW)
    assert [version.is_open for version in read_versions(settings.pipeline("p"))] == [True]


@pytest.mark.proves("howto-upgrade.md#a-new-version-beside-the-old-one")
def test_a_version_is_not_dropped_under_its_load_or_its_driver(tmp_path: Path) -> None:
    settings, _ = changed_project(tmp_path)
    begin_version(settings, "p", by="test", now=NOW)
    home = settings.pipeline("p@v2")
    with hold_load(home), pytest.raises(LostRaceError, match="does a first load of p@v2 already"):
        drop_version(settings, "p@v2", by="test", now=NOW)
    with lock(lock_file(home)), pytest.raises(LostRaceError, match="starts the stream of p@v2"):
        drop_version(settings, "p@v2", by="test", now=NOW)
    assert [version.is_open for version in read_versions(settings.pipeline("p"))] == [True]
    assert home.root.exists()
