"""Another host: a network of its own, joined to this one by a cable, where some folders are empty."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from boxes.box import missing

HERE, THERE = "10.78.0.1", "10.78.0.2"
_ENTER = (
    'mount --make-rprivate / && while [ "$1" != -- ]; do mount -t tmpfs tmpfs "$1"; shift; done && shift && exec "$@"'
)


def why_not() -> str | None:
    """Return why no other host can be made here, or None."""
    return missing() or (None if shutil.which("ip") else "no `ip`; on Debian: apt-get install iproute2")


@dataclass(frozen=True)
class OtherHost:
    """A host.

    Attributes:
        name: of its namespace.
        hidden: folders of this host that are empty there.
    """

    name: str
    hidden: Sequence[Path]

    @property
    def inside(self) -> list[str]:
        """The words before a command that runs there."""
        hidden = map(str, self.hidden)
        return ["ip", "netns", "exec", self.name, "unshare", "--mount", "sh", "-c", _ENTER, "sh", *hidden, "--"]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command there."""
        return subprocess.run([*self.inside, *command], capture_output=True, text=True, timeout=120, check=False)


@contextmanager
def other_host(name: str, hidden: Sequence[Path]) -> Iterator[OtherHost]:
    """Give a host whose address is `THERE`; from it, this one's is `HERE`."""
    cable = f"{name}0"
    _ip("netns", "add", name)
    try:
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("addr", "add", f"{HERE}/24", "dev", cable)
        _ip("link", "set", cable, "up")
        for words in (
            ("addr", "add", f"{THERE}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", name, *words)
        yield OtherHost(name, hidden)
    finally:
        subprocess.run(["ip", "link", "delete", cable], check=False, capture_output=True)
        _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
