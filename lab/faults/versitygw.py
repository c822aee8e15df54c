"""The S3 server of the tests: versitygw at a pinned version, built by Go if it is installed. Only tests need it."""

from __future__ import annotations

from lab.faults.go_program import GoProgram

_PROGRAM = GoProgram("versitygw", "1.8.0", "github.com/versity/versitygw/cmd/versitygw")
VERSION, NO_GO = _PROGRAM.version, _PROGRAM.no_go
versitygw_binary, build_versitygw = _PROGRAM.binary, _PROGRAM.build
