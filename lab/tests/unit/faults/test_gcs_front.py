"""The front of fake-gcs-server: what it answers to writes, by the server's own answer."""

from __future__ import annotations

import json

from lab.faults.gcs_front import _as_xml
from lab.faults.gcs_server import PROGRAM


def test_a_write_is_answered_as_the_xml_api_does():
    made = {"etag": "abc=", "generation": "17"}
    for answer in (made, {"kind": "storage#rewriteResponse", "resource": made}):
        said = _as_xml((200, {"Content-Type": "application/json"}, json.dumps(answer).encode()))
        assert said == (200, {"ETag": '"abc="', "x-goog-generation": "17"}, b"")
    assert _as_xml((412, {"x": "y"}, b"conditionNotMet")) == (412, {}, b"conditionNotMet")


def test_a_machine_without_go_says_so_and_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert PROGRAM.build(tmp_path) == PROGRAM.no_go
    assert PROGRAM.binary(tmp_path) is None
