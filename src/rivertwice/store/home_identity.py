"""Which home it is: an id that no copy of its folder shares, on whatever disk, machine or mount.

The id decides one thing: whether an earlier holder of a lease ran *here*, where the local lock tells that it is dead. So it must never be
equal for two homes; that it changes costs only a wait of `Terms.takeover_s`. It is made of a number by chance, kept in `home.json`; of
that file's device and number, which differ in a copy; and of the machine's boot, which differs on a clone of the disk, and on another host
that mounts the same folder, whose locks may not reach this one.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import secrets
from pathlib import Path

from rivertwice.processes import boot_id
from rivertwice.store.files import put_json_if_absent, read_json, replace_json

FORMAT = 2
_MACHINE = Path("/etc/machine-id")
_log = logging.getLogger(__name__)


def home_id(folder: Path) -> str:
    """Return the id of the home that a folder belongs to; a folder that was copied or moved gets one of its own, and a warning."""
    path, place = folder / "home.json", _place_of(folder)
    put_json_if_absent(path, {"format": FORMAT, "home": secrets.token_hex(8), "place": place})
    record = read_json(path) or {}
    known = record.get("place")  # absent in format 1, of 0.1
    if known != place:
        told = describe_copy(folder)
        if told is not None:
            _log.warning("%s; it has an id of its own from now on", told)
        record = {"format": FORMAT, "home": secrets.token_hex(8), "place": place}
        replace_json(path, record)
    file = path.stat()
    return f"{record['home']}-{file.st_dev:x}.{file.st_ino:x}-{boot_id() or platform.node()}"


def describe_copy(folder: Path) -> str | None:
    """Return what to say of a home whose folder was copied or moved since something last ran in it; None if it was not. Reads only."""
    if not (folder / "home.json").exists():
        return None
    known, place = (read_json(folder / "home.json") or {}).get("place"), _place_of(folder)
    if known is None or known == place:
        return None
    return (
        f"the home {folder} was copied or moved here: it was made as {known} and is {place} now; if the other one is still there, run "
        "each pipeline in one of them only (`rivertwice stop NAME` in the other), for without RIVERTWICE_SHARED nothing keeps them "
        "apart, and both would deliver"
    )


def _place_of(folder: Path) -> str:
    """Return what stays as long as a folder is neither copied nor taken to another machine: the machine's id, and the folder's number."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        machine = _MACHINE.read_bytes().strip()
    except OSError:  # a container has none, often
        machine = b""
    return f"{hashlib.sha256(machine).hexdigest()[:12]}:{folder.stat().st_ino:x}"
