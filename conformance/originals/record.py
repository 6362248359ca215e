"""Run the original class of a checkpoint in float32 and keep what localising a divergence needs."""

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

# torch and transformers (extra `oracles`) are heavy: imported where a model is run.

CACHE_NAMES = ("cache", "past_key_values", "cache_params")  # what classes and versions call the same thing


def record_original(checkpoint_dir: Path, input_ids: np.ndarray, *, greedy: int = 8) -> dict[str, np.ndarray]:
    """What the original transformers class computes for one prompt, in float32 with eager attention.

    checkpoint_dir: a folder with config.json and safetensors, any causal language model that transformers knows.
    input_ids: [tokens] or [1, tokens], integers.
    greedy: how many tokens to decode after the prompt, one at a time through the class's own cache; 0 for none.

    Returns arrays by name, float32 unless said, T = tokens, L = layers:

    | name | shape | is |
    |---|---|---|
    | `logits` | [T, vocab] | of every prompt row |
    | `hidden.<0..L>` | [T, hidden] | as `output_hidden_states` gives them: the embedding, then after each layer; streams of a row
      lie end to end |
    | `greedy.ids` | [T + greedy] i64 | the prompt, then the tokens chosen |
    | `greedy.logits` | [greedy, vocab] | what each was chosen from |
    | `module.<dotted name>.input`, `.output` | [T, width] | first operand and result of every leaf module that has
      weights, in the prompt's run; an embedding's operand is `input_ids` and is not repeated |
    | `attention.<layer>.query`, `.key`, `.value` | [T, heads * width] | as handed to the attention function, after
      rope, head-major; key and value before their heads are repeated |
    | `attention.<layer>.output` | [T, heads * width] | as the attention function returns it |

    Raises ModuleNotFoundError without the extra `oracles`, and whatever transformers raises for a broken checkpoint.
    """
    import torch

    model = _original_class(checkpoint_dir).from_pretrained(
        checkpoint_dir, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    model.eval()
    prompt = torch.as_tensor(np.asarray(input_ids).reshape(1, -1).astype(np.int64))
    recorded: dict[str, np.ndarray] = {}
    with torch.no_grad():
        with _modules_recorded(model, recorded), _attention_recorded(model, recorded):
            out = model(input_ids=prompt, output_hidden_states=True, use_cache=False)
        recorded["logits"] = _rows(out.logits)
        for layer, hidden in enumerate(out.hidden_states):
            recorded[f"hidden.{layer}"] = _rows(hidden)
        if greedy:
            ids, logits = _decode(model, prompt, greedy)
            recorded["greedy.ids"], recorded["greedy.logits"] = ids, logits
    return recorded


def _original_class(checkpoint_dir: Path) -> Any:
    """The class that config.json names, or the one that transformers picks for its model type."""
    import transformers

    named = json.loads((checkpoint_dir / "config.json").read_text()).get("architectures") or [""]
    return getattr(transformers, named[0], transformers.AutoModelForCausalLM)


def _rows(tensor: Any) -> np.ndarray:
    """A tensor [1, tokens, ...] as float32 [tokens, width]."""
    return tensor.detach().float().reshape(tensor.shape[1] if tensor.dim() > 2 else tensor.shape[0], -1).numpy().copy()


def _head_rows(tensor: Any) -> np.ndarray:
    """A tensor [1, heads, tokens, width] as float32 [tokens, heads * width]."""
    return _rows(tensor.transpose(1, 2))


@contextmanager
def _modules_recorded(model: Any, recorded: dict[str, np.ndarray]) -> Iterator[None]:
    """Keep operand and result of every leaf module with weights of its own."""
    hooks = []

    def keep(name: str) -> Callable[..., None]:
        def hook(module: Any, operands: tuple[Any, ...], result: Any) -> None:
            if operands and operands[0].is_floating_point():
                recorded[f"module.{name}.input"] = _rows(operands[0])
            recorded[f"module.{name}.output"] = _rows(result[0] if isinstance(result, tuple) else result)

        return hook

    for name, module in model.named_modules():
        if not list(module.children()) and list(module.parameters()):
            hooks.append(module.register_forward_hook(keep(name)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _attention_recorded(model: Any, recorded: dict[str, np.ndarray]) -> Iterator[None]:
    """Keep what goes into and comes out of `eager_attention_forward`, the global through which every class attends."""
    files = {sys.modules[type(module).__module__] for module in model.modules()}
    originals = {file: file.eager_attention_forward for file in files if hasattr(file, "eager_attention_forward")}

    def recording(attend: Callable[..., Any]) -> Callable[..., Any]:
        def attend_and_keep(module: Any, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
            result = attend(module, query, key, value, *rest, **options)
            if not hasattr(module, "layer_idx"):  # attention over something else than tokens
                return result
            kept = {"query": _head_rows(query), "key": _head_rows(key), "value": _head_rows(value), "output": _rows(result[0])}
            recorded.update({f"attention.{module.layer_idx}.{name}": rows for name, rows in kept.items()})
            return result

        return attend_and_keep

    for file, attend in originals.items():
        file.eager_attention_forward = recording(attend)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for file, attend in originals.items():
            file.eager_attention_forward = attend  # type: ignore[attr-defined]


def _decode(model: Any, prompt: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` greedy tokens after the prompt, one at a time: ids [tokens + count] and logits [count, vocab]."""
    import torch

    ids, feed, logits = prompt, prompt, []
    cache: dict[str, Any] = {}
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    for _ in range(count):
        # Stated, because the cache of a hybrid model does not always count its rows.
        positions = torch.arange(ids.shape[1] - feed.shape[1], ids.shape[1])[None]
        out = model(input_ids=feed, use_cache=True, **cache, **({"position_ids": positions} if takes_positions else {}))
        name = next(name for name in CACHE_NAMES if getattr(out, name, None) is not None)
        cache = {name: getattr(out, name)}
        logits.append(out.logits[0, -1].float())
        feed = logits[-1].argmax().view(1, 1)
        ids = torch.cat([ids, feed], dim=1)
    return ids[0].numpy(), torch.stack(logits).numpy()
