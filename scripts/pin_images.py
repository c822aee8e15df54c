"""Pin the images that compose, the manifest and the Dockerfile name by digest, as the registry has them now.

`--check` says which are not pinned, and needs no network; without it each tag is looked up by `docker buildx imagetools inspect`
and written as `NAME:TAG@sha256:DIGEST`. Images that this repository builds itself have no digest before they are pushed.
Standard library only.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
FILES = ("docker-compose.yml", "docker/Dockerfile", "docker/kubernetes/base/rivertwice.yaml")
OURS = "rivertwice:"
_IMAGE = re.compile(r"^(?P<before>\s*(?:image:|FROM)\s+)(?P<image>[^\s#]+)", re.MULTILINE)
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}\Z")


class PinError(Exception):
    """A digest could not be looked up; the text says what to do."""


def select_unpinned(text: str) -> list[str]:
    """Return the images of others in a file that are named without a digest, each once."""
    images = {found["image"] for found in _IMAGE.finditer(text)}
    return sorted(each for each in images if "@sha256:" not in each and not each.startswith(OURS))


def with_digests(text: str, look_up: Callable[[str], str]) -> str:
    """Return a file's text with the digest of every image of others, those that have one looked up again by their tag."""

    def put(found: re.Match[str]) -> str:
        tag = found["image"].split("@")[0]
        return found[0] if tag.startswith(OURS) else f"{found['before']}{tag}@{look_up(tag)}"

    return _IMAGE.sub(put, text)


def look_up(tag: str) -> str:
    """Return the digest of a tag, as the registry has it now.

    Raises:
        PinError: there is no docker, or the registry does not answer.
    """
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", tag]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        message = (
            f"docker cannot be asked for the digest of {tag} ({error}); nothing was written: run it where docker is"
        )
        raise PinError(message) from error
    digest = done.stdout.strip()
    if done.returncode != 0 or not _DIGEST.match(digest):
        message = f"no digest of {tag}: {(done.stderr.strip() or digest)[-300:]}; nothing was written: check the tag and the network"
        raise PinError(message)
    return digest


def main(argv: list[str], project: Path = PROJECT, ask: Callable[[str], str] = look_up) -> int:
    """Check or write; return the exit code.

    Args:
        argv: `--check`, or nothing.
        project: the repository.
        ask: returns the digest of a tag.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say which images are not pinned; exit 1 if any")
    check = parser.parse_args(argv).check
    texts = {name: (project / name).read_text() for name in FILES}
    if check:
        unpinned = [f"{name}: {image}" for name, text in texts.items() for image in select_unpinned(text)]
        sys.stdout.write("".join(f"not pinned by digest: {each}\n" for each in unpinned))
        return 1 if unpinned else 0
    try:
        pinned = {name: with_digests(text, ask) for name, text in texts.items()}
    except PinError as error:
        sys.stderr.write(f"pin-images: {error}\n")
        return 1
    for name, text in pinned.items():
        if text != texts[name]:
            (project / name).write_text(text)
            sys.stdout.write(f"pinned: {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
