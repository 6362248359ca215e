"""Poem: a language in which a model is one short file.

    import poem
    package = poem.load_package("models/llama_3.poem")
    graph = package.trace("llama31-8b-bf16-kv-bf16")

Importing this package is cheap; what a name needs is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poem.artifact import open_artifact as open_artifact
    from poem.checkpoint import open_checkpoint as open_checkpoint
    from poem.epilogue import run_pass as run_pass
    from poem.package import load_package as load_package

__version__ = "0.1.0"
_EXPORTS = {
    "load_package": "poem.package",
    "open_artifact": "poem.artifact",
    "open_checkpoint": "poem.checkpoint",
    "run_pass": "poem.epilogue",
    "PoemError": "poem.errors",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> object:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module 'poem' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
