"""What stands in for the images that cannot be had here: Kafka's, PostgreSQL's and versitygw's, by the programs themselves."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from boxes.compose_file import Container
from homes.project import REPOSITORY
from lab.faults.postgres import find_binaries
from lab.faults.versitygw import versitygw_binary
from rivertwice.core.settings import Settings
from rivertwice.engine.java import java_env

_HERE = Path(__file__).parent
_VENV = Path(os.path.realpath(sys.prefix))
PYTHON = str(_VENV / "bin" / "python")


@cache
def java_home() -> Path:
    """Return the folder of the Java that set-up found."""
    return Path(java_env(Settings(REPOSITORY, REPOSITORY / ".rivertwice"))["JAVA_HOME"])


def search_path() -> str:
    """Return PATH of a box: this Python's programs, Java, the system's."""
    return f"{_VENV / 'bin'}:{java_home() / 'bin'}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class StandIn:
    """How an image's container is started here.

    Attributes:
        before: the image's entry point; the file's command comes after it.
        binds: path in the box to a file or folder of this machine.
    """

    before: tuple[str, ...] = ()
    binds: dict[str, Path] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    as_root: bool = False


def python_folders() -> list[Path]:
    """Return the folders without which this Python and this Java do not run."""
    java = [] if java_home().is_relative_to("/usr") else [java_home()]
    return sorted({_VENV, Path(os.path.realpath(sys.base_prefix)), *java})


def stand_in_for(container: Container) -> StandIn:
    """Return how to start a container of one of the images that the files name."""
    name = container.image.split(":")[0]
    if container.ours:
        return StandIn()
    if name == "apache/kafka":
        binds = {
            "/opt/kafka/libs": (REPOSITORY / ".build" / "jars" / "broker").resolve(),
            "/opt/stand-in": _HERE,
        }
        return StandIn((PYTHON, "/opt/stand-in/kafka.py"), binds)
    if name == "postgres":
        binaries = find_binaries()
        assert binaries is not None, "no PostgreSQL here (initdb); on Debian: apt-get install postgresql"
        return StandIn(
            ("/bin/sh", "/opt/stand-in/postgres.sh"), {"/opt/stand-in": _HERE}, {"PATH": f"{binaries}:{search_path()}"}
        )
    assert name == "versity/versitygw", f"nothing stands in for {container.image}"
    binary = versitygw_binary(REPOSITORY / ".build")
    assert binary is not None, "versitygw is not built: `make setup-dev` builds it where Go is installed"
    inside = "/opt/stand-in/versitygw"
    starts_itself = container.command[0].startswith("/")  # the file names another entry point
    return StandIn(
        () if starts_itself else (inside,),
        {inside: binary.resolve()},
        {"PATH": f"/opt/stand-in:{search_path()}"},
        as_root=True,
    )
