"""Several versions of the site: each says which it is, leads to the same page of another, and knows the newest release."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from homes.project import REPOSITORY
from rivertwice import __version__
from running.reader import DOCS_URL
from running.site import build_site, clone_with
from servers.browser import find_chromium
from servers.cockpit import LAUNCH

_SPEC = importlib.util.spec_from_file_location("site_versions", REPOSITORY / "scripts" / "site_versions.py")
site_versions = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(site_versions)

pytestmark = [pytest.mark.long, pytest.mark.browser, pytest.mark.skipif(find_chromium() is None, reason="no Chromium")]
OLD, GONE, NEW = "0.0.9", "howto-cdc.html", "howto-only-old.html"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release that was built with an address; beside it an older one, which has a page that the others lack, and what is not released."""
    folder = tmp_path_factory.mktemp("versions")
    clone = clone_with(folder / "clone", "CHANGELOG.md")
    (clone / "CHANGELOG.md").write_text(f"# Changelog\n\n## {__version__} (2026-11-26)\n")
    built = build_site(folder / "site", clone, **{DOCS_URL: "https://docs.example/rivertwice"})
    for name in (OLD, site_versions.UNRELEASED):
        shutil.copytree(built, folder / "site" / name)
        for page in (folder / "site" / name).rglob("*.html"):
            page.write_text(page.read_text().replace(f'data-version="{__version__}"', f'data-version="{name}"'))
    only_old = (folder / "site" / OLD / GONE).rename(folder / "site" / OLD / NEW)
    only_old.write_text(only_old.read_text().replace(f'data-page="{GONE}"', f'data-page="{NEW}"'))
    site_versions.write_versions(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def browser(site: Path):
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=find_chromium(), args=LAUNCH)


@pytest.fixture
def page(browser):
    """A page that fails the test by an error of its scripts."""
    errors: list[str] = []
    opened = browser.new_page()
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    opened.close()
    assert errors == []


def line_of(page: Page) -> str:
    """Return what the line over a page says; empty if it has none."""
    banner = page.query_selector(".md-banner")
    return banner.inner_text().strip() if banner else ""


def choices(page: Page, site: Path) -> list[str]:
    links = page.query_selector_all(".md-version__link")
    return [str(link.evaluate("link => link.href")).removeprefix(f"{site.as_uri()}/") for link in links]


def test_a_page_says_its_version_and_its_address_without_a_script(site: Path) -> None:
    text = (site / __version__ / "howto-log.html").read_text()
    assert f"<title>Keep the log - rivertwice {__version__}</title>" in text
    assert f'href="https://docs.example/rivertwice/{__version__}/howto-log.html"' in text


def test_an_old_page_leads_to_the_newest_release_and_to_the_same_page_of_each(site: Path, page: Page) -> None:
    page.goto((site / OLD / "reference" / "code.html").as_uri())
    assert line_of(page) == f"This is version {OLD}. The newest release is {__version__}."
    assert page.inner_text(".md-version__current") == OLD
    assert choices(page, site) == [f"{name}/reference/code.html" for name in (__version__, OLD, "unreleased")]
    page.click(".md-banner a")
    assert page.url == (site / __version__ / "reference" / "code.html").as_uri()
    assert line_of(page) == ""


def test_a_page_that_another_version_lacks_leads_to_its_first_page(site: Path, page: Page) -> None:
    page.goto((site / OLD / NEW).as_uri())
    assert choices(page, site)[0] == f"{__version__}/index.html"
    page.goto((site / "unreleased" / GONE).as_uri())
    assert line_of(page) == f"This is not released yet. The newest release is {__version__}."
    assert choices(page, site) == [f"{__version__}/{GONE}", f"{OLD}/index.html", f"unreleased/{GONE}"]


def test_the_site_begins_with_the_newest_release(site: Path, page: Page) -> None:
    page.goto((site / "index.html").as_uri())
    page.wait_for_url((site / __version__ / "index.html").as_uri())


def test_versions_are_in_the_order_of_their_numbers_and_other_folders_are_none(tmp_path: Path) -> None:
    for name in ("0.9.0", "0.10.0", "unreleased", "assets"):
        (tmp_path / name).mkdir()
        if name != "assets":
            (tmp_path / name / "index.html").touch()
    site_versions.write_versions(tmp_path)
    shown = (tmp_path / "versions.js").read_text()
    assert shown.index("0.10.0") < shown.index("0.9.0") < shown.index("unreleased")
    assert "assets" not in shown
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()


def test_a_release_that_the_package_does_not_say_is_refused(tmp_path: Path) -> None:
    clone = clone_with(tmp_path / "clone", "CHANGELOG.md")
    (clone / "CHANGELOG.md").write_text("# Changelog\n\n## 7.0.0 (2030-01-01)\n")
    with pytest.raises(ValueError, match=r"CHANGELOG.md begins with 7.0.0, which is not the package's version"):
        site_versions.version_of(clone)
