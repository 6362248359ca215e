"""The garbage collector of Python, where looking for garbage costs more than it finds."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """Without the collector. Modules and traces are thousands of objects that stay: looking among them takes a tenth of their time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
