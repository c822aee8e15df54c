"""Which home it is: a name that a copy of the folder does not share."""

from __future__ import annotations

import secrets
from pathlib import Path

from rivertwice.store.files import put_json_if_absent, read_json

FORMAT = 1


def home_id(folder: Path) -> str:
    """Return the id of a home. A copied home is another host's: the file's own number tells them apart."""
    path = folder / "home.json"
    put_json_if_absent(path, {"format": FORMAT, "home": secrets.token_hex(8)})
    return f"{(read_json(path) or {})['home']}-{path.stat().st_ino:x}"
