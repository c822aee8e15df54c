"""First half of `make setup`: from a bare Python 3.11, 3.12 or 3.13 to the locked environment in `.venv`.

Standard library only. Steps: (1) `.build/tools`, a small environment with uv at a locked version; (2) `.venv`;
(3) the packages of the lock, every one by hash; (4) rivertwice itself and its lab, editable; (5) what pip cannot install: Java and
jars (`rivertwice setup`), the example data, the class archive, for tests an S3 server and an Azure server.
A stamp in `.venv` names the locks it was built from; when it matches, steps 1 to 4 cost nothing and need no network.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
TOOLS = PROJECT / ".build" / "tools"
VENV = PROJECT / ".venv"
PYTHON = VENV / "bin" / "python"
SUPPORTED = ((3, 11), (3, 12), (3, 13))
# pip's settings that decide where packages come from, and uv's names for them
PIP_TO_UV = {"index-url": "UV_INDEX_URL", "extra-index-url": "UV_EXTRA_INDEX_URL", "cert": "SSL_CERT_FILE"}
PIP_TO_UV |= {"trusted-host": "UV_INSECURE_HOST", "find-links": "UV_FIND_LINKS"}


class SetupError(Exception):
    """A step failed; the text says what to do."""


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print one line when a step begins and its time when it ends."""
    started = time.monotonic()
    sys.stdout.write(f"setup: {name:<15} ...")
    sys.stdout.flush()
    try:
        yield
    except BaseException:
        sys.stdout.write(" failed\n")
        sys.stdout.flush()
        raise
    sys.stdout.write(f" done ({time.monotonic() - started:.1f} s)\n")
    sys.stdout.flush()


def run(command: Sequence[str | Path], env: dict[str, str] | None = None) -> str:
    """Run a command and return what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=env,
        cwd=PROJECT,
        check=False,
    )
    if done.returncode != 0:
        shown = " ".join(str(part) for part in command)
        message = f"`{shown}` ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
        raise SetupError(message)
    return done.stdout


def select_python() -> str:
    """Return an interpreter of a supported version: this one, else one on PATH."""
    if sys.version_info[:2] in SUPPORTED:
        return sys.executable
    for major, minor in reversed(SUPPORTED):
        found = shutil.which(f"python{major}.{minor}")
        if found:
            return found
    message = (
        f"this is Python {sys.version.split()[0]}; rivertwice needs 3.11, 3.12 or 3.13 and finds none of them on PATH. "
        "Install one, or call `make setup PYTHON=/path/to/python3.12`"
    )
    raise SetupError(message)


def fingerprint(lock: str) -> str:
    """Return what an environment depends on, as one hash: lock, package metadata, place."""
    digest = hashlib.sha256(str(PROJECT).encode())
    for name in (lock, "requirements-build.lock", "pyproject.toml", "lab/pyproject.toml"):
        digest.update((PROJECT / name).read_bytes())
    return digest.hexdigest()


def stamp_path(lock: str) -> Path:
    """Return the stamp of one lock."""
    return VENV / f".{lock}.stamp"


def is_current(lock: str) -> bool:
    """Say whether `.venv` was built from the lock as it is now."""
    stamp = stamp_path(lock)
    return PYTHON.exists() and stamp.exists() and stamp.read_text() == fingerprint(lock)


def uv_environment(pip_config: str, env: dict[str, str]) -> dict[str, str]:
    """Return `env` with pip's own settings under uv's names; what is set for uv already wins.

    Args:
        pip_config: output of `pip config list`, lines such as `global.index-url='https://...'`.
        env: the environment to add to.
    """
    added: dict[str, str] = {}
    for line in pip_config.splitlines():
        key, _, value = line.partition("=")
        name = PIP_TO_UV.get(key.rpartition(".")[2])
        text = value.strip().strip("'\"")
        if name is None or not text:
            continue
        if name == "UV_FIND_LINKS" and "://" not in text and not Path(text).is_dir():
            continue  # pip shrugs at a folder that is not there, uv stops
        added[name] = text.replace("\\n", " ").strip()
    return {**added, **env}


def ensure_tools(python: str) -> dict[str, str]:
    """Build the small environment with uv; return the environment variables uv runs with."""
    marker = TOOLS / ".requirements-tools.stamp"
    wanted = (PROJECT / "requirements-tools.lock").read_text()
    if not marker.exists() or marker.read_text() != wanted:
        with step("uv"):
            shutil.rmtree(TOOLS, ignore_errors=True)
            try:
                run([python, "-m", "venv", TOOLS])
            except SetupError as error:
                message = f"{error}\nPython's venv module is incomplete; on Debian: apt-get install python3-venv"
                raise SetupError(message) from None
            pip = [TOOLS / "bin" / "python", "-m", "pip", "install", "--quiet"]
            run([*pip, "--require-hashes", "-r", "requirements-tools.lock"])
            marker.write_text(wanted)
    listed = run([TOOLS / "bin" / "python", "-m", "pip", "config", "list"])
    return uv_environment(listed, dict(os.environ))


def build_environment(lock: str, python: str) -> None:
    """Make `.venv` hold the packages of the lock and the editable packages; nothing is uninstalled."""
    env = ensure_tools(python)
    uv = TOOLS / "bin" / "uv"
    if not PYTHON.exists():
        with step("environment"):
            run([uv, "venv", "--quiet", "--allow-existing", "--python", python, VENV], env)
    install = [uv, "pip", "install", "--quiet", "--python", PYTHON]
    with step("packages"):
        # Compiled now, once: where PYTHONDONTWRITEBYTECODE is set, every process would compile pandas again (7 s).
        run([*install, "--compile-bytecode", "--require-hashes", "-r", lock], env)
    editable = ["--editable", ".", "--editable", "lab"]
    with step("rivertwice"):
        run([*install, "--no-deps", "--build-constraints", "requirements-build.lock", *editable], env)
    if lock == "requirements-dev.lock":  # a superset of the runtime lock, with the same versions
        stamp_path("requirements.lock").write_text(fingerprint("requirements.lock"))
    stamp_path(lock).write_text(fingerprint(lock))


@contextmanager
def servers_beside() -> Iterator[None]:
    """Get the servers of the tests beside the block, which mostly waits for the network, and print their lines at the end.

    A server that cannot be had is no error: the tests that need it skip.
    """
    command = [sys.executable, "-m", "lab.faults.servers", str(PROJECT / ".build")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), str(PROJECT)])}
    build = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    try:
        yield
    except BaseException:
        os.killpg(build.pid, signal.SIGTERM)
        build.wait()
        raise
    sys.stdout.write(build.communicate()[0])
    sys.stdout.flush()


def add_the_rest(*, dev: bool) -> int:
    """Add what pip cannot install, the data beside Java, jars and class archive. Return the exit code."""
    lanes = [
        [["-m", "rivertwice.cli.main", "setup", *(["--dev"] if dev else [])]],
        [["-m", "lab.flights.data"]],
    ]
    with ThreadPoolExecutor(len(lanes)) as pool:
        return max(pool.map(run_lane, lanes))


def run_lane(commands: Sequence[Sequence[str]]) -> int:
    """Run Python with the arguments of each command, one after the other, to the first that fails; return its code."""
    for arguments in commands:
        code = subprocess.run([str(PYTHON), *arguments], cwd=PROJECT, check=False).returncode
        if code:
            return code
    return 0


def main() -> int:
    """Run the set-up; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also what tests, linters and benches need")
    parser.add_argument("--tools", action="store_true", help="only the small environment with uv")
    given = parser.parse_args()
    lock = "requirements-dev.lock" if given.dev else "requirements.lock"
    (PROJECT / ".build").mkdir(exist_ok=True)
    try:
        with (PROJECT / ".build" / "setup.lock").open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)  # two set-ups at once would build the same folders
            if given.tools:
                ensure_tools(select_python())
                return 0
            with servers_beside() if given.dev else nullcontext():
                if not is_current(lock):
                    build_environment(lock, select_python())
                elif not (TOOLS / "bin" / "uv").exists():
                    ensure_tools(select_python())
                return add_the_rest(dev=given.dev)
    except SetupError as error:
        sys.stderr.write(f"setup: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
