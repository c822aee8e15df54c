"""Start the JVM of a command, and pass on what it says, except one warning that every start has and nobody can act on.

Spark's launcher adds the module `jdk.incubator.vector`, and Java warns of it on stderr; no option of Java turns that off. All other
lines are passed on as they come. Logs of streams and jobs keep the warning.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

_EXPECTED = b"WARNING: Using incubator modules: jdk.incubator.vector"


def start_jvm(confs: Mapping[str, str]) -> None:
    """Start the JVM that the process's session will use, unless there is one; `confs` are those of the session."""
    if SparkContext._gateway is not None:
        return
    said, theirs = os.pipe()
    try:
        conf = SparkConf(loadDefaults=False).setAll(list(confs.items()))
        threading.Thread(target=pass_on, args=(said, 2), name="what the JVM says", daemon=True).start()
        gateway = launch_gateway(conf, popen_kwargs={"stderr": theirs})  # type: ignore[no-untyped-call]
    finally:
        os.close(theirs)
    SparkContext._ensure_initialized(gateway=gateway)


def pass_on(said: int, to: int) -> None:
    """Copy lines from one file descriptor to another until its end, without the warning; what has no end of line yet waits for it."""
    rest = b""
    while block := os.read(said, 65_536):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line.rstrip() != _EXPECTED:
                _write(to, line + b"\n")
    if rest:
        _write(to, rest)
    os.close(said)


def _write(to: int, data: bytes) -> None:
    while data:
        data = data[os.write(to, data) :]
