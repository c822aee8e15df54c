"""What a schedule with versions may start: the actors, and the stories of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab.model.stories import ACTORS
from lab.model.versions import begin, keeper, serve

VERSION_ACTORS: dict[str, Callable[..., Any]] = {
    **ACTORS,
    "keeper": keeper.run_keeper,
    "far keeper": keeper.run_keeper,
    "load": begin.load_alone,
    "upgrade": begin.run_upgrade,
    "drop new": begin.run_drop,
    "serve new": serve.run_serve,
    "serve old": serve.run_serve,
    "serve again": serve.run_serve,
    "far serve new": serve.run_serve,
    "far serve old": serve.run_serve,
}
BEGUN = ("define", "upgrade", "settle")
PROVED = (*BEGUN, "reconcile", "reconcile@new")
SERVED = (*PROVED, "serve new")
DROPPED = ("stopped@new", "rest@new", "drop new")
RESTED = (*PROVED, "settle", "stopped@new", "rest@new")
VERSION_STORIES = (
    SERVED,
    (*SERVED, "backfill", "serve old", "backfill@new", "serve new"),
    (*SERVED, "serve old", *DROPPED),
    (*SERVED, "reconcile", "reconcile@new", "serve old", "reconcile", "reconcile@new", "serve new"),
    (*SERVED, *BEGUN, "reconcile@new", "serve new", "serve old"),
    (*BEGUN, *DROPPED, "upgrade", "settle", "reconcile", "reconcile@new", "serve new"),
    (*PROVED, "serve new", *DROPPED, "serve old"),
    (*SERVED, "backfill", "backfill@new", "serve new", "serve old"),
    (*PROVED, "backfill@new", "settle", "serve new", "reconcile@new", "serve new"),
    (*BEGUN, "serve new", "reconcile", "serve new", "reconcile@new", "serve new"),
    (*RESTED, "serve new", "catch serve new at serve: its rows and their stamp read", "now drop new", "serve old"),
    (*RESTED, "serve new", "catch serve new at serve: both locks held, the table opened", "now drop new", "serve old"),
    (*RESTED, "drop new", "catch drop new at drop: it does not serve, and no driver runs", "now serve new"),
    ("define", "upgrade", "catch upgrade at begin: version recorded", "now drop new"),
    ("define", "upgrade", "catch upgrade at begin: old definition frozen", "now drop new", "upgrade"),
    ("define", "upgrade", "catch upgrade at load: event times read", "now drop new", "upgrade"),
    ("define", "upgrade", "catch upgrade at load: recorded", "now drop new", "upgrade"),
    (*PROVED, "catch far keeper at served of a version: table is its own", "now serve new", "serve old"),
    (*SERVED, "catch keeper at served of a version: table opened", "now serve old", "now serve new"),
    (*SERVED, "serve old", "catch serve old at serve: switched", "now reconcile", "now reconcile@new", "serve new"),
    (*SERVED, "catch serve new at serve: switched", "now reconcile", "now reconcile@new", "serve old"),
    (*SERVED, "reconcile@new", "catch reconcile at reconcile: stamp of served read", "now serve old", "serve new"),
    (
        *SERVED,
        "backfill",
        "serve old",
        "catch serve old at serve: its own rows are built",
        "now serve new",
        "backfill",
    ),
)
VERSION_TASKS = {
    kind.partition("@")[0].removeprefix("now ")
    for story in VERSION_STORIES
    for kind in story
    if not kind.startswith("catch ")
} - {
    "define",
    "settle",
    "rest",
    "stopped",
} | {"load"}
