"""The face of a package: the names that other packages import from it, each loaded when it is first asked for.

A package's `__init__` imports each of these names under `if TYPE_CHECKING:`, from the module that has it, and takes its
`__getattr__` (PEP 562) from here, which reads these imports. So `from rivertwice.storage import read_json` loads neither delta-rs nor boto3.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazy_names(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package."""

    def find(name: str) -> Any:
        home = None if name.startswith("__") else homes_of(package).get(name)
        if home is None:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(
            import_module(home), name
        )  # not kept: one place has the name, and who replaces it there is heard

    return find


@cache
def homes_of(package: str) -> dict[str, str]:
    """Return each name of a package's face with the module that has it."""
    loader: Any = vars(import_module(package))["__loader__"]
    blocks = [node for node in ast.parse(loader.get_source(package)).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {name.name: str(node.module) for node in imports for name in node.names}
