"""Dense decoders traced by hand, without the language: Llama, Mistral and Qwen2 over their goldens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from conformance.align import Landing
from poem.checkpoint import Checkpoint, open_checkpoint
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor
from poem.errors import Frame
from poem.graph import Fold, Graph, ValueType
from poem.ops.operands import Value, Weight
from poem.ops.scaling import llama3
from poem.tracer import Tracer

GOLDENS = Path(__file__).parents[2] / "models" / "goldens"
MINIS = {
    "llama31-mini": "llama_3", "llama-tied-mini": "llama_3", "mistral-mini": "mistral", "qwen2-mini": "qwen_2",
}  # fmt: skip
LINES = {
    "embed": 1, "attn_norm": 2, "q": 3, "k": 4, "v": 5, "rope": 6, "append": 7, "attend": 8, "o": 9, "attn_add": 10, "mlp_norm": 11,
    "gate_up": 12, "glu": 13, "down": 14, "mlp_add": 15, "final_norm": 16, "readout": 17, "head": 18,
}  # fmt: skip
# A change of one traced call: (name of its line, arguments) -> arguments.
Change = Callable[[str, list[Any]], list[Any]]


def folder(mini: str) -> Path:
    return GOLDENS / MINIS[mini] / mini


def dense(mini: str, dtype: str = "bf16", change: Change | None = None) -> tuple[Graph, Checkpoint, list[Landing], dict[str, Tensor]]:
    """The graph of a mini, its golden's checkpoint, where its tensors land, and its weights."""
    checkpoint = open_checkpoint(folder(mini))
    config = checkpoint.config
    hidden, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    inter, vocab, depth = config["intermediate_size"], config["vocab_size"], config["num_hidden_layers"]
    rope, eps = config["rope_parameters"], config["rms_norm_eps"]
    scaling = None
    if rope["rope_type"] == "llama3":
        scaling = llama3(rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"])
    window = config.get("sliding_window") if mini.startswith("mistral") else None
    biased = mini.startswith("qwen2")
    tracer = Tracer(MINIS[mini], mini, f"{mini}-{dtype}-kv-{dtype}")
    landings: list[Landing] = []
    params: dict[str, Weight] = {}

    def weight(name: str, shape: list[int], *tensors: str) -> None:
        made = Weight(tuple(shape), Dtype(dtype))
        tracer.add_param(made, name)
        params[name] = made
        start = 0
        for tensor in tensors:
            landings.append(Landing(tensor, name, start))
            start += checkpoint.shape(tensor)[0]

    weight("embed", [vocab, hidden], "model.embed_tokens.weight")
    for l in range(depth):  # noqa: E741
        at = f"model.layers.{l}."
        weight(f"layers.{l}.attn_norm", [hidden], at + "input_layernorm.weight")
        for name, rows in (("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)):
            weight(f"layers.{l}.{name}", [rows, hidden], f"{at}self_attn.{name}_proj.weight")
            if biased:
                weight(f"layers.{l}.{name}_bias", [rows], f"{at}self_attn.{name}_proj.bias")
        weight(f"layers.{l}.o", [hidden, heads * head_dim], at + "self_attn.o_proj.weight")
        weight(f"layers.{l}.mlp_norm", [hidden], at + "post_attention_layernorm.weight")
        weight(f"layers.{l}.gate_up", [2 * inter, hidden], at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight")
        weight(f"layers.{l}.down", [hidden, inter], at + "mlp.down_proj.weight")
    weight("final_norm", [hidden], "model.norm.weight")
    if not config["tie_word_embeddings"]:
        weight("head", [vocab, hidden], "lm_head.weight")
    space = tracer.add_space(dtype, window)
    caches = [tracer.add_kv(space, f"kv.{l}", [kv_heads * head_dim] * 2, head_dim, True) for l in range(depth)]  # noqa: E741

    def call(line: str, op: str, *arguments: Any, **options: Any) -> Any:
        listed = list(arguments) if change is None else change(line, list(arguments))
        return tracer.call(op, listed, options, (Frame(f"{MINIS[mini]}.poem", LINES[line], "forward"),))

    tokens = tracer.input("tokens", ValueType("tokens", 1, "i32"))
    positions = tracer.input("positions", ValueType("tokens", 1, "i32"))
    readouts = tracer.input("readout_rows", ValueType("readouts", 1, "i32"))
    y: Value = call("embed", "gather.embed", tokens, params["embed"], vocab)
    carried = [(y.id,)]
    for l in range(depth):  # noqa: E741
        tracer.layer = (0, l)
        w = {name: params.get(f"layers.{l}.{name}") for name in (
            "attn_norm", "q", "k", "v", "q_bias", "k_bias", "v_bias", "o", "mlp_norm", "gate_up", "down",
        )}  # fmt: skip
        x = call("attn_norm", "elemwise.rmsnorm", y, w["attn_norm"], eps)
        projected = []
        for name in ("q", "k", "v"):
            value = call(name, "linear.matmul", x, w[name])
            projected.append(call(name, "elemwise.add_bias", w[name + "_bias"], value) if biased else value)
        q, k, v = projected
        q, k = call("rope", "elemwise.rope", q, k, positions, head_dim, rope["rope_theta"], None, "half", "first", scaling)
        pages = tracer.cache_handle(caches[l])
        call("append", "attn.kv_append", k, v, pages)
        o = call("attend", "attn.attend", q, pages, tracer.handle, head_dim, kv_heads, head_dim**-0.5, window)
        y = call("attn_add", "elemwise.residual_add", call("o", "linear.matmul", o, w["o"]), y)
        x = call("mlp_norm", "elemwise.rmsnorm", y, w["mlp_norm"], eps)
        h = call("glu", "linear.glu", call("gate_up", "linear.matmul", x, w["gate_up"]), inter)
        y = call("mlp_add", "elemwise.residual_add", call("down", "linear.matmul", h, w["down"]), y)
        carried.append((y.id,))
    tracer.layer = None
    tracer.folds.append(Fold(0, tuple(carried)))
    x = call("final_norm", "elemwise.rmsnorm", y, params["final_norm"], eps)
    x = call("readout", "gather.gather_rows", x, readouts)
    logits = call("head", "linear.lm_head", x, params.get("head", params["embed"]))
    tracer.output("logits", logits, ())
    weights = {}
    for name in params:
        parts = [checkpoint.tensor(landing.tensor).decode() for landing in landings if landing.param == name]
        array = parts[0] if len(parts) == 1 else np.concatenate(parts)
        weights[name] = Tensor.encode(array, Dtype(dtype))
    return tracer.graph(), checkpoint, landings, weights
