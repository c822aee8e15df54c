"""The name that `rivertwice.airflow` had in 0.1: a project's DAG files import it. It goes with the next release."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "notifiers": "alerts",
    "operate_dags": "dags",
    "repair_dag": "dags",
    "links": "operators",
    "definitions": "factory",
}
"""Modules that have another name in `rivertwice.airflow`."""


class _Moved(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if parent == __name__ and name else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = spec.name.rpartition(".")[2]
        now = f"rivertwice.airflow.{MOVED.get(name, name)}"
        warnings.warn(f"{spec.name} is {now} now; the old name goes with the next release", FutureWarning, stacklevel=2)
        self._own = importlib.import_module(now).__spec__
        return sys.modules[now]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # the import put that of the old name in its place


sys.meta_path.append(_Moved())
