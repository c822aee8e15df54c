"""Boxes: make, reach, check and stop them."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from boxes import stand_ins
from boxes.compose_file import Check, Container, image_entrypoint, image_environment, image_folders
from homes.project import REPOSITORY
from running.waiting import wait_for

T = TypeVar("T")
NETWORK = "10.77.0"
UID = 10001  # of the image's user, as the Dockerfile makes it
_CLONE_NEWNET = 0x40000000
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "usr", "sys")
_SCRIPT = """
set -e
until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up; ip addr add {address}/24 dev eth0; ip link set eth0 up; hostname {name}
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs {root}
cd {root}
{mounts}
mkdir -p proc dev run
mount -t proc proc proc
mount --rbind /dev dev
exec chroot . {python} -I /box/init.py
"""


def missing() -> str | None:
    """Return why no box can be made here, or None."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "boxes need Linux and root: namespaces, bind mounts and a bridge"
    tools = [tool for tool in ("unshare", "nsenter", "ip", "mount", "chroot", "wget") if shutil.which(tool) is None]
    if tools:
        return f"boxes need {', '.join(tools)}; on Debian: apt-get install util-linux iproute2 wget"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "br0", "type", "bridge"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    return None if tried.returncode == 0 else f"no namespaces or no bridge here: {tried.stderr.strip()}"


@dataclass
class Box:
    """One container that was started."""

    container: Container
    address: str
    process: subprocess.Popen[bytes]
    log: Path
    root_pid: int

    @property
    def first(self) -> int:
        """Process id, seen from the host, of the first process of the box."""
        children = Path(f"/proc/{self.root_pid}/task/{self.root_pid}/children").read_text().split()
        assert children, f"{self.container.name} has ended: {self.tail()}"
        return int(children[0])

    def tail(self, size: int = 3000) -> str:
        """Return the end of what it wrote."""
        return self.log.read_text(errors="replace")[-size:]

    def run(self, *command: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as `docker exec` does."""
        enter = ["nsenter", "-t", str(self.first), "-m", "-p", "-n", "-u", "-i", "--root", "--wd"]
        return subprocess.run(
            [*enter, stand_ins.PYTHON, "-I", "/box/init.py", *command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def ask(self, *command: str, timeout: float = 120.0) -> str:
        """Run a command in it that must end well, and return what it printed."""
        done = self.run(*command, timeout=timeout)
        assert done.returncode == 0, f"{self.container.name}: {command} ended with {done.returncode}: {done.stderr}"
        return done.stdout

    def stop(self) -> int:
        """Send SIGTERM, wait for the grace period, and return the exit code; what still runs then fails the test."""
        os.kill(self.first, signal.SIGTERM)
        try:
            return self.process.wait(self.container.grace_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.container.name} outlived its grace period: {self.tail()}") from None


class Boxes:
    """Containers that see each other by name. `close` ends them all."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Make their network.

        Args:
            folder: for volumes, logs and roots.
            names: every container that will be started, so that each has an address from the beginning.
        """
        self.folder = folder
        self.addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, start=10)}
        self.boxes: dict[str, Box] = {}
        self._made = 0
        bridge = (
            f"ip link set lo up; ip link add br0 type bridge; ip addr add {NETWORK}.1/24 dev br0; ip link set br0 up"
        )
        self._net = subprocess.Popen(["unshare", "--net", "sh", "-ec", f"{bridge}; exec sleep infinity"])
        self._etc = self._make_etc()
        self._image = self._make_image()

    def _make_etc(self) -> Path:
        etc = self.folder / "etc"
        shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True)
        lines = [f"{address} {name}" for name, address in self.addresses.items()]
        (etc / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
        (etc / "resolv.conf").unlink(missing_ok=True)
        with (etc / "passwd").open("a") as accounts:
            accounts.write(f"rivertwice:x:{UID}:{UID}::/home/rivertwice:/bin/sh\n")
        return etc

    def _make_image(self) -> Path:
        """Copy what the Dockerfile copies, and nothing else."""
        image = self.folder / "image"
        for source, target in image_folders().items():
            found = REPOSITORY / source
            if found.is_dir():
                shutil.copytree(found, image / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (image / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(found, image / target)
        subprocess.run(["chown", "-R", f"{UID}:{UID}", str(image)], check=True)
        return image

    def volume(self, name: str) -> Path:
        """Return the folder of a volume, that of a new one owned by the image's user; `./...` is a folder of the repository."""
        if name.startswith("./"):
            return REPOSITORY / name
        path = self.folder / "volumes" / name
        if not path.exists():
            path.mkdir(parents=True)
            os.chown(path, UID, UID)
        return path

    def start(self, container: Container, name: str | None = None) -> Box:
        """Start a container; one of the same name that has ended is replaced."""
        name = name or container.name
        self._made += 1
        folder = self.folder / "boxes" / f"{name}-{self._made}"
        (folder / "root").mkdir(parents=True)
        stand_in = stand_ins.stand_in_for(container)
        env = {"PATH": stand_ins.search_path(), "HOME": "/root", "HOSTNAME": name, "LANG": "C.UTF-8", **stand_in.env}
        if container.ours:
            env |= {"HOME": "/home/rivertwice", "PYTHONPATH": "/opt/rivertwice/src", **image_environment()}
            assert image_entrypoint() == ["tini", "--"]  # which init.py stands for
        env |= container.environment
        box = {
            "argv": [*stand_in.before, *container.command],
            "env": env,
            "uid": 0 if stand_in.as_root else UID,
            "cwd": "/opt/rivertwice" if container.ours else "/",
        }
        (folder / "box").mkdir()
        (folder / "box" / "box.json").write_text(json.dumps(box))
        shutil.copy(Path(__file__).with_name("init.py"), folder / "box")
        script = _SCRIPT.format(
            address=self.addresses[name], name=name, root=folder / "root", python=stand_ins.PYTHON,
            mounts="\n".join(self._mounts(container, folder, stand_in)),
        )  # fmt: skip
        (folder / "start.sh").write_text(script)
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            flags = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=SIGKILL"]
            process = subprocess.Popen(
                ["unshare", *flags, "sh", str(folder / "start.sh")], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env={"PATH": os.environ["PATH"]}, start_new_session=True,
            )  # fmt: skip
        self._plug(process.pid)
        made = Box(container, self.addresses[name], process, log, process.pid)
        self.boxes[name] = made
        return made

    def _plug(self, pid: int) -> None:
        own = os.readlink("/proc/self/ns/net")
        self._until(lambda: os.readlink(f"/proc/{pid}/ns/net") != own, "a network namespace", 10)
        at = ["nsenter", f"--net=/proc/{self._net.pid}/ns/net", "ip", "link"]
        veth = f"v{self._made}"
        peer = ["type", "veth", "peer", "name", "eth0", "netns", str(pid)]
        subprocess.run([*at, "add", veth, *peer], check=True, timeout=30)
        subprocess.run([*at, "set", veth, "master", "br0", "up"], check=True, timeout=30)

    def _mounts(self, container: Container, folder: Path, stand_in: stand_ins.StandIn) -> list[str]:
        (folder / "tmp").mkdir(mode=0o777)
        (folder / "tmp").chmod(0o1777)
        (folder / "home").mkdir()
        os.chown(folder / "home", UID, UID)
        lines = []
        for name in _SYSTEM:
            if Path("/", name).is_symlink():
                lines.append(f"cp -P /{name} {name}")
            elif Path("/", name).exists():
                lines.append(f"mkdir {name}; mount --rbind /{name} {name}")
        binds: dict[str, Path] = {
            "/etc": self._etc, "/tmp": folder / "tmp", "/var/tmp": folder / "tmp", "/box": folder / "box",
            "/home/rivertwice": folder / "home",
            **{str(path): path for path in stand_ins.python_folders()}, **stand_in.binds,
        }  # fmt: skip
        if container.ours:
            binds["/opt/rivertwice"] = self._image
            binds["/opt/lab/lab"] = (
                REPOSITORY / "lab"
            )  # what sends records in place of a user's own programs; on no path of the image
            for name in ("jars", "data"):  # what `python -m rivertwice.setup` makes; the image has no data
                for path in sorted((REPOSITORY / ".build" / name).iterdir()):
                    binds[f"/opt/rivertwice/.build/{name}/{path.name}"] = path.resolve()
        for target, volume in container.mounts.items():
            binds[target] = self.volume(volume)
        for target, source in binds.items():
            made = f"mkdir -p .{target}" if source.is_dir() else f"mkdir -p .{Path(target).parent}; touch .{target}"
            lines.append(f"{made}; mount --rbind {source} .{target}")
        return lines

    def healthy(self, name: str, kind: str = "health", timeout: float = 300.0) -> None:
        """Wait until a container's own check passes."""
        box = self.boxes[name]
        self._until(lambda: self._passes(box, box.container.checks[kind]), f"{name} {kind}", timeout, box)

    def passes(self, name: str, kind: str) -> bool:
        """Say whether a container's check passes now."""
        return self._passes(self.boxes[name], self.boxes[name].container.checks[kind])

    def _passes(self, box: Box, check: Check) -> bool:
        if check.command:
            return box.run(*check.command).returncode == 0
        kind, where = check.url.split("://:")
        port, _, path = where.partition("/")
        if kind == "tcp":
            return self.inside(lambda: _accepts(box.address, int(port)))
        return self.inside(lambda: _answers(f"http://{box.address}:{port}/{path}"))

    def completed(self, name: str, timeout: float = 300.0) -> None:
        """Wait until a container has ended, with 0."""
        box = self.boxes[name]
        code = box.process.wait(timeout)
        assert code == 0, f"{name} ended with {code}: {box.tail()}"

    def up(self, containers: Mapping[str, Container], say: Callable[[str], None]) -> None:
        """Start them in order, each once what it needs is as it must be, and wait until all are healthy."""
        for name, container in containers.items():
            for other, condition in container.needs.items():
                self._await(other, condition)
            say(f"start {name}: {' '.join(container.command) or container.image}")
            self.start(container)
        for name, container in containers.items():
            if container.checks:
                self.healthy(name)
                say(f"healthy: {name}")

    def _await(self, name: str, condition: str) -> None:
        if condition == "healthy":
            self.healthy(name)
        elif condition == "completed_successfully":
            self.completed(name)

    def inside(self, act: Callable[[], T]) -> T:
        """Call a function in a thread whose sockets are in the containers' network, and return what it returns."""
        found: list[Any] = []

        def enter() -> None:
            with Path(f"/proc/{self._net.pid}/ns/net").open() as namespace:
                libc = ctypes.CDLL(None, use_errno=True)
                try:
                    assert libc.setns(namespace.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
                    found.append((act(), None))
                except BaseException as error:
                    found.append((None, error))

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        value, error = found[0]
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def _until(self, condition: Callable[[], bool], what: str, timeout: float, box: Box | None = None) -> None:
        def holds() -> bool:
            if condition():
                return True
            assert box is None or box.process.poll() is None, (
                f"{what}: it ended with {box.process.poll()}: {box.tail()}"
            )
            return False

        wait_for(what, holds, timeout, every=0.5, seen=lambda: box.tail() if box else "")

    def close(self) -> None:
        """End everything that still runs; a box's processes end with its first one."""
        for box in self.boxes.values():
            if box.process.poll() is None:
                box.process.kill()
                box.process.wait()
        self._net.kill()
        self._net.wait()


def _accepts(host: str, port: int) -> bool:
    import socket

    try:
        socket.create_connection((host, port), 5).close()
    except OSError:
        return False
    return True


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
