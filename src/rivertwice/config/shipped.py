"""Files that rivertwice brings along: DAG files, Spark jobs, suites, the plugin, the locks of Java and of jars.

A project may have its own of each, and then that one counts. Else it is the one in the installed package, which the wheel holds in
`rivertwice/shipped`. A clone has them at its top level, from where the wheel takes them.
"""

from __future__ import annotations

from pathlib import Path

from rivertwice.errors import ConfigError

INSTALLED = Path(__file__).resolve().parent.parent / "shipped"
CLONE = Path(__file__).resolve().parents[3]
"""The clone that this package is run from, if it is run from one."""


def find_shipped(project: Path, name: str) -> Path:
    """Return the file or folder that counts for a project.

    Args:
        project: the user's project.
        name: path below it, for instance `spark_jobs/reconcile.py` or `dags`.

    Raises:
        ConfigError: neither the project nor the package has it.
    """
    places = (project / name, INSTALLED / name, CLONE / name)
    for place in places:
        if place.exists():
            return place
    message = (
        f"{name} is neither in the project ({project}) nor in the installed package ({INSTALLED}), so the installation is not whole; "
        "install rivertwice again"
    )
    raise ConfigError(message)


def is_clone(project: Path) -> bool:
    """Say whether a project is a clone of rivertwice, whose own locks say what belongs into its environment."""
    return (project / "locks").is_dir() and (project / "requirements.lock").is_file()
