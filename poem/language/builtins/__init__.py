"""The builtins, one module for each phase."""

import importlib
from collections.abc import Callable
from typing import Any

from poem.language.builtins import caches, everywhere, forward, layout, load
from poem.language.builtins.record import ENTRIES


def _later(name: str) -> Callable[..., Any]:
    """An entry of the formats phase; its module is loaded when it is first called."""

    def run(*args: Any) -> Any:
        importlib.import_module("poem.language.builtins.formats")
        return ENTRIES[name](*args)

    return run


# What the prelude may call, by the names it uses.
CALLABLES: dict[str, Callable[..., Any]] = {
    **{name: _later(name) for name in ("_py_formats", "_py_recognized", "_py_pairs", "_py_read_over")},
    **ENTRIES,
    **everywhere.UNGUARDED,
    **forward.UNGUARDED,
}

__all__ = ["CALLABLES", "caches", "layout", "load"]
