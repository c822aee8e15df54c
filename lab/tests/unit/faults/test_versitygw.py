"""The S3 server of the tests is built where it can be, and set-up never fails for want of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from lab.faults.s3_server import why_not
from lab.faults.versitygw import NO_GO, VERSION, build_versitygw, versitygw_binary


def test_without_go_set_up_says_so_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build_versitygw(tmp_path) == NO_GO
    assert versitygw_binary(tmp_path) is None
    assert "make setup-dev" in (why_not(tmp_path, tmp_path / "x") or "")


def test_a_go_that_fails_is_told_and_no_error(tmp_path, monkeypatch):
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no network" in build_versitygw(tmp_path / "build")


def test_a_server_that_is_there_is_not_built_again(tmp_path, monkeypatch):
    binary = tmp_path / "versitygw" / VERSION / "versitygw"
    binary.parent.mkdir(parents=True)
    binary.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build_versitygw(tmp_path).endswith("there")


def test_of_two_builds_at_once_the_second_waits_and_finds_it_there(tmp_path, monkeypatch):
    go = tmp_path / "go"
    go.write_text(
        f'#!/bin/sh\necho run >> {tmp_path}/runs\nsleep 0.3\ntouch "$GOBIN/versitygw"\nchmod +x "$GOBIN/versitygw"\n'
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with ThreadPoolExecutor(2) as pool:
        said = sorted(pool.map(build_versitygw, [tmp_path / "build"] * 2))
    assert said == [f"versitygw {VERSION}, built", f"versitygw {VERSION}, there"]
    assert (tmp_path / "runs").read_text() == "run\n"
