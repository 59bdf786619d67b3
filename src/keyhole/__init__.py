"""keyhole: what an attention layer can compute, and what its answers give away.

The public names stand in `__init__.pyi`. Each is loaded when first used, so that importing the
package is quick and pulls in nothing optional.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


def _read_stub() -> dict[str, str]:
    """The module that each public name comes from, names in order."""
    tree = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return dict(sorted((alias.name, str(node.module)) for node in imports for alias in node.names))


_HOME = _read_stub()
# Type checkers find the names in the stub; here they are not written out a second time.
__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'keyhole' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
