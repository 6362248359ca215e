"""Checkpoints: safetensors and GGUF, from a folder, a file or the hub, mapped and never loaded whole."""

from poem.checkpoint.checkpoint import Checkpoint
from poem.checkpoint.joined import Joined
from poem.checkpoint.open import open_checkpoint
from poem.checkpoint.stored import Stored

__all__ = ["Checkpoint", "Joined", "Stored", "open_checkpoint"]
