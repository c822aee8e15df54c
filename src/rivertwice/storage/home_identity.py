"""The identity of a home: an id that no copy of its folder shares, on any disk, machine or mount.

The id decides one thing: whether an earlier holder of a lease ran *in this home*, where the free local lock shows that it is dead. So it must
never be equal for two homes; a change of the id costs only a wait of `Terms.takeover_s`. It consists of three parts. A random number, stored
in `home.json`. That file's device and inode number, which differ in a copy. And the machine's boot, which differs on a clone of the disk, and
on another host that mounts the same folder, where this host's locks may not work.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import secrets
from pathlib import Path

from rivertwice.core import boot_id
from rivertwice.storage.local import put_json_if_absent, read_json, replace_json

FORMAT = 2
_MACHINE = Path("/etc/machine-id")
_log = logging.getLogger(__name__)


def home_id(folder: Path) -> str:
    """Return the id of a home's folder; a folder that was copied or moved gets a new id, and a warning is logged."""
    path, place = folder / "home.json", _place_of(folder)
    put_json_if_absent(path, {"format": FORMAT, "home": secrets.token_hex(8), "place": place})
    record = read_json(path) or {}
    recorded_place = record.get("place")  # absent in format 1, of 0.1
    if recorded_place != place:
        warning = describe_copy(folder)
        if warning is not None:
            _log.warning("%s; from now on it has its own id", warning)
        record = {"format": FORMAT, "home": secrets.token_hex(8), "place": place}
        replace_json(path, record)
    file = path.stat()
    return f"{record['home']}-{file.st_dev:x}.{file.st_ino:x}-{boot_id() or platform.node()}"


def describe_copy(folder: Path) -> str | None:
    """Return the warning about a home whose folder was copied or moved since it was last used; None if it was not. Reads only."""
    if not (folder / "home.json").exists():
        return None
    recorded_place, place = (read_json(folder / "home.json") or {}).get("place"), _place_of(folder)
    if recorded_place is None or recorded_place == place:
        return None
    return (
        f"the home {folder} was copied or moved here: it was made as {recorded_place} and is {place} now; if the other one is still there, run "
        "each pipeline in one of them only (`rivertwice stop NAME` in the other), because without RIVERTWICE_SHARED no lock keeps them "
        "apart, and both would deliver"
    )


def _place_of(folder: Path) -> str:
    """Return the machine's id and the folder's inode number: they stay the same unless the folder is copied or moved to another machine."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        machine = _MACHINE.read_bytes().strip()
    except OSError:  # a container often has none
        machine = b""
    return f"{hashlib.sha256(machine).hexdigest()[:12]}:{folder.stat().st_ino:x}"
