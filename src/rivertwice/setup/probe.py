"""Health checks of containers: does a port accept, does a page answer, does Airflow call one of its parts healthy.

Standard library only, so that a check every few seconds costs little. Exit code 0: yes; 1: no, with the reason on stderr.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import urllib.request
from collections.abc import Sequence

TIMEOUT_S = 5.0
AIRFLOW_PARTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m rivertwice.setup.probe", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    tcp = kinds.add_parser("tcp", help="a port accepts connections")
    tcp.add_argument("host")
    tcp.add_argument("port", type=int)
    http = kinds.add_parser("http", help="a page answers with a success")
    http.add_argument("url")
    airflow = kinds.add_parser("airflow", help="Airflow's API server calls its parts healthy")
    airflow.add_argument("url", help="of the API server")
    airflow.add_argument("part", nargs="+", choices=AIRFLOW_PARTS)
    return parser


def select_sick(health: object, parts: Sequence[str]) -> dict[str, str]:
    """Return the parts of Airflow that are not healthy, each with its status.

    Args:
        health: answer of `/api/v2/monitor/health`.
        parts: the parts to check.
    """
    parts_health = health if isinstance(health, dict) else {}
    words = {
        part: parts_health[part].get("status") if isinstance(parts_health.get(part), dict) else None for part in parts
    }
    return {part: str(word) for part, word in words.items() if word != "healthy"}


def probe(arguments: argparse.Namespace) -> str | None:
    """Return why the check failed, or None."""
    try:
        if arguments.kind == "tcp":
            socket.create_connection((arguments.host, arguments.port), TIMEOUT_S).close()
            return None
        if not arguments.url.startswith(("http://", "https://")):
            return f"{arguments.url!r} is not a valid page address; write http://HOST:PORT/PATH"
        url = arguments.url if arguments.kind == "http" else f"{arguments.url.rstrip('/')}/api/v2/monitor/health"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 (http and https only, see above)
            body = answer.read(1_000_000)
        sick = select_sick(json.loads(body), arguments.part) if arguments.kind == "airflow" else {}
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None if not sick else ", ".join(f"{part} is {word}" for part, word in sick.items())


def main(argv: Sequence[str]) -> int:
    """Run one check; return the exit code."""
    reason = probe(build_parser().parse_args(argv))
    if reason is not None:
        sys.stderr.write(f"probe: {reason}\n")
    return 0 if reason is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
