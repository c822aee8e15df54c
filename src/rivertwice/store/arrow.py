"""pyarrow in a command: without pandas before it is used. Whatever opens a table imports this first.

pyarrow asks once whether pandas is there, and imports it to find out: 0.45 CPU-seconds of every command that reads a table. In a
command it asks while pandas cannot be imported. What needs a frame (`to_pandas`) asks again, and gets it. In a user's program nothing
is changed: there `pyarrow.array` may be given a series of pandas before the first frame is asked for.
Seen with pyarrow 26.0.1: `PandasAPIShim` in pyarrow/pandas-shim.pxi, tests/unit/store/test_arrow.py.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from rivertwice.one_command import is_one_command


class _NoPandas:
    """Refuses to import pandas: a finder, because Cython takes a None in `sys.modules` for the module itself."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


if is_one_command() and "pandas" not in sys.modules:
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(_NoPandas)
