"""rivertwice: one pipeline definition, streamed and recomputed; every differing row has a named cause.

From Python, results are read by `rivertwice.open("path/of/the/project").served("NAME").to_pandas()`, and
`.act("reconcile", "NAME")` does what the command of the same name does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from rivertwice.acts import ActingProject

__version__ = "0.1.0"
__all__ = ["open"]


def open(  # noqa: A001 (rivertwice.open)
    project: str | Path | None = None, *, home: str | Path | None = None, require_current: bool = False
) -> ActingProject:
    """Return a project whose results are to be read, and to which one can act (`rivertwice.acts.project`).

    Args:
        project: folder with `pipelines/`; None: `RIVERTWICE_PROJECT`, else the current folder.
        home: folder of its state; None: `RIVERTWICE_HOME`, else `PROJECT/.rivertwice`.
        require_current: refuse rows of `served` and `provisional` that do not show all that is committed.

    Raises:
        ConfigError: a setting cannot be read, or the extra `spark` is not installed.
    """
    from rivertwice.acts import open_to_act
    from rivertwice.core import naming_extras

    with naming_extras("pyarrow"):
        return open_to_act(project, home=home, require_current=require_current)
