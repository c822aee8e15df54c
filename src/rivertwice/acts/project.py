"""A project as a Python value that can act: `rivertwice.open("path").act("savepoint.pin", "flight_delays", savepoint="sp-...")`."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

from rivertwice.acts.act import Act, Plan, Request, World
from rivertwice.acts.catalogue import find_act
from rivertwice.acts.forms import parse_request
from rivertwice.core import Progress, report_nothing, utc_now
from rivertwice.read import Project, open_project


class ActingProject(Project):
    """A project whose results are read (`Project`), and to which one can do what the command line does."""

    def plan(self, act: str, pipeline: str, **fields: Any) -> Plan:
        """Return what an act would do; nothing is done.

        Args:
            act: its name, as `savepoint.restore`; an unknown one is answered with all names.
            pipeline: its name, or that of a version.
            fields: of the act's request (`rivertwice.acts`), and `reason`.

        Raises:
            RequestError: there is no such act or pipeline, or the request is refused.
        """
        chosen, world, request = self._prepare(act, pipeline, fields, getpass.getuser(), report_nothing)
        return chosen.plan(world, request)

    def act(
        self, act: str, pipeline: str, *, by: str | None = None, progress: Progress = report_nothing, **fields: Any
    ) -> Any:
        """Do an act and return what came of it, a dataclass. Nobody is asked, as with `--yes`.

        Args:
            pipeline: its name, or that of a version.
            by: who does it, for records; None: the user of this process.
            fields: of the act's request, and `reason`.

        Raises:
            RequestError: the request is refused, or the act cannot be done.
        """
        chosen, world, request = self._prepare(act, pipeline, fields, by or getpass.getuser(), progress)
        return chosen.apply(world, request)

    def _prepare(
        self, act: str, pipeline: str, fields: dict[str, Any], by: str, progress: Progress
    ) -> tuple[Act[Any, Any], World, Request]:
        chosen, now = find_act(act), utc_now()
        self.settings.known_pipeline(pipeline)
        return chosen, World(self.settings, by, now, progress=progress), parse_request(chosen, fields, pipeline)


def open_to_act(
    project: str | Path | None = None, *, home: str | Path | None = None, require_current: bool = False
) -> ActingProject:
    """Return a project; the arguments and errors are those of `open_project`."""
    found = open_project(project, home=home, require_current=require_current)
    return ActingProject(found.settings, require_current=found.require_current)
