"""The builtins, one module for each phase."""

from collections.abc import Callable
from typing import Any

from poem.language.builtins import caches, everywhere, formats, forward, layout, load, media
from poem.language.builtins.record import ENTRIES

# What the prelude may call, by the names it uses.
CALLABLES: dict[str, Callable[..., Any]] = {**ENTRIES, **everywhere.UNGUARDED, **forward.UNGUARDED}

__all__ = ["CALLABLES", "caches", "formats", "layout", "load", "media"]
