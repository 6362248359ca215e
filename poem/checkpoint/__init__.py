"""Checkpoints: safetensors and GGUF, from a folder, a file or the hub, mapped and never loaded whole."""

from poem.checkpoint.checkpoint import Checkpoint
from poem.checkpoint.open import open_checkpoint
from poem.checkpoint.stored import Stored

__all__ = ["Checkpoint", "Stored", "open_checkpoint"]
