"""The Azure server of the tests: what is said where it cannot be installed."""

from __future__ import annotations

import pytest

from lab.faults.azure_server import NO_NPM, VERSION, azurite_program, install_azurite


def test_a_machine_without_npm_says_so_and_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert install_azurite(tmp_path) == NO_NPM
    assert azurite_program(tmp_path) is None


@pytest.mark.parametrize("version", ["v18.20.0", "v20.20.2"])
def test_what_npm_says_is_shown_and_an_old_node_is_none(tmp_path, monkeypatch, version):
    for name, text in (("npm", "echo no network >&2; exit 1"), ("node", f"echo {version}")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    said = install_azurite(tmp_path / "build")
    assert said == NO_NPM if version < "v20" else "no network" in said
    assert azurite_program(tmp_path / "build") is None


def test_what_is_installed_is_not_installed_again(tmp_path, monkeypatch):
    main = tmp_path / "azurite" / VERSION / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    main.parent.mkdir(parents=True)
    main.write_text("")
    node = tmp_path / "bin" / "node"
    node.parent.mkdir()
    node.write_text("#!/bin/sh\necho v22.0.0\n")
    node.chmod(0o755)
    monkeypatch.setenv("PATH", f"{node.parent}:/usr/bin:/bin")
    assert install_azurite(tmp_path).endswith("there")
    assert azurite_program(tmp_path) == main
