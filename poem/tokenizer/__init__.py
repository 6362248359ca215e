"""Text to token ids and back: a checkpoint's own tokenizer.json, and one made from GGUF metadata."""

from poem.tokenizer.stream import TextStream
from poem.tokenizer.tokenizer import Marker, Tokenizer

__all__ = ["Marker", "TextStream", "Tokenizer"]
