"""What the JVM of a command says is passed on, except the one warning that every start has."""

from __future__ import annotations

import os
import threading

from rivertwice.engine.session import pass_on

WARNING = b"WARNING: Using incubator modules: jdk.incubator.vector\n"


def passed_on(*blocks: bytes) -> bytes:
    said, jvm = os.pipe()
    terminal, to = os.pipe()
    copying = threading.Thread(target=pass_on, args=(said, to))
    copying.start()
    for block in blocks:
        os.write(jvm, block)
    os.close(jvm)
    copying.join(30)
    os.close(to)
    with os.fdopen(terminal, "rb") as shown:
        return shown.read()


def test_only_the_warning_is_left_out() -> None:
    assert passed_on(WARNING, b"Error: no heap\n") == b"Error: no heap\n"
    assert passed_on(b"one\n" + WARNING + b"two\nno end of line") == b"one\ntwo\nno end of line"


def test_a_warning_that_comes_in_two_parts_is_left_out_too() -> None:
    assert passed_on(WARNING[:20], WARNING[20:] + b"x\n") == b"x\n"


def test_a_warning_of_another_module_is_passed_on() -> None:
    other = WARNING.replace(b"vector", b"other")
    assert passed_on(other) == other
