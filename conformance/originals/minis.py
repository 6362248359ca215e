"""Mini checkpoints: tiny instances of transformers classes with random weights, the same on every run.

    python -m conformance.originals.minis OUT [NAME ...]

writes OUT/NAME/ with config.json, model.safetensors (bf16, under the names of a hub checkpoint) and
inputs.safetensors. Weights are drawn from a seed and the mini's name; norm gains and biases carry a signal too, so
that leaving one out shows. `python -m conformance.originals OUT/NAME GOLDEN` then runs and records the original class.
"""

import argparse
import hashlib
from pathlib import Path
from typing import Any

from poem.dataclass import dataclass

SEED = 20240731
TOKENS = 24  # longer than any mini's window
LOWEST_ID, HIGHEST_ID = 3, 239  # above the special tokens, below the end of the vocabulary

BASE = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Mini:
    """A transformers class and what its config says beyond BASE; `package` and `model` say whose golden it makes."""

    cls: str
    package: str
    model: str
    config: dict[str, Any]


MINIS = {
    "llama_3": Mini("LlamaForCausalLM", "llama_3", "llama31-mini", {"head_dim": 32, "rms_norm_eps": 1e-5, "rope_parameters": LLAMA_3_ROPE}),
    "llama_tied": Mini("LlamaForCausalLM", "llama_3", "llama-tied-mini", {"head_dim": 32, "tie_word_embeddings": True}),
    "mistral": Mini("MistralForCausalLM", "mistral", "mistral-mini", {"head_dim": 32, "sliding_window": 8}),
    "qwen_2": Mini("Qwen2ForCausalLM", "qwen_2", "qwen2-mini", {}),
}


def make_mini(name: str, folder: Path) -> None:
    """Write the checkpoint and the prompt of MINIS[name] to `folder`. Needs the extra `oracles`."""
    import torch
    import transformers
    from safetensors.torch import save_file

    mini = MINIS[name]
    cls = getattr(transformers, mini.cls)
    model = cls._from_config(cls.config_class(**{**BASE, **mini.config}), dtype=torch.float32)
    _draw_weights(model, name)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    prompt = torch.randint(LOWEST_ID, HIGHEST_ID + 1, (1, TOKENS), generator=torch.Generator().manual_seed(SEED))
    save_file({"input_ids": prompt}, folder / "inputs.safetensors")


def _draw_weights(model: Any, name: str) -> None:
    """Set every parameter to random bfloat16 values: vectors near their start, matrices scaled by their fan-in."""
    import torch

    digest = hashlib.sha256(name.encode()).digest()
    generator = torch.Generator().manual_seed(SEED + int.from_bytes(digest[:4], "little"))
    with torch.no_grad():
        for key, parameter in sorted(model.named_parameters()):  # a tied head is named once
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                value = parameter + 0.1 * noise
            elif "embed_tokens" in key and not model.config.tie_word_embeddings:
                value = noise
            else:  # a tied table is also the head: its logits stay near unit scale
                value = noise * parameter.shape[-1] ** -0.5
            parameter.copy_(value.to(torch.bfloat16))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write mini checkpoints of transformers classes.")
    parser.add_argument("out", type=Path, help="folder to write to, one folder per mini")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which (default: all): {', '.join(MINIS)}")
    args = parser.parse_args()
    for name in args.names or MINIS:
        if name not in MINIS:
            parser.error(f"{name} is no mini; there are {', '.join(MINIS)}")
        make_mini(name, args.out / name)


if __name__ == "__main__":
    main()
