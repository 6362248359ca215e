"""Goldens of quantised deployments: Llama in float64 over weights that are encoded and decoded here, with torch.

    python -m conformance.originals.quantised models/goldens/llama_3

A quantised deployment has no original class. What it means is stated by its dtypes: which weights are encoded how, how the input of
a product is rounded, how keys and values are stored. This file says that once more, apart from `poem.dtypes` and `interp`, of which
it uses nothing. All else is float64, so what is written is the meaning itself, stored in float32.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

RECIPES = [("e4m3tile128a8", "e4m3"), ("nvfp4", "e4m3"), ("u4g64", "bf16")]  # weights, kv
MODELS = ["llama31-mini", "llama-tied-mini"]
TOKENS, GREEDY = 20, 4  # of the prompt: past a window of 16; more would make every check slower
# The matrices of a layer, as they are joined by rows before they are encoded: a scale of the whole tensor spans a join.
MATRICES = [
    ("self_attn.q_proj",), ("self_attn.k_proj",), ("self_attn.v_proj",), ("self_attn.o_proj",), ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
]  # fmt: skip
# The numbers of e2m1 by code; of two at one distance the even code is meant, so even ones are looked at first.
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
EVEN_FIRST = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
LARGEST = 448.0  # of e4m3
Planes = dict[str, Tensor]


# -- element formats -----------------------------------------------------------------------------
def e4m3(x: Tensor) -> Tensor:
    """float32 rounded to OCP e4m3, to nearest even; what is too large becomes the largest number. Returns float8."""
    return x.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def e2m1(x: Tensor) -> Tensor:
    """Codes of the nearest e2m1 number: magnitude in three bits, sign in the fourth."""
    distance = (x.double().abs()[..., None] - E2M1[EVEN_FIRST]).abs()
    return EVEN_FIRST[distance.argmin(-1)] + 8 * torch.signbit(x)


def e2m1_value(code: Tensor) -> Tensor:
    return E2M1[code % 8] * (1 - 2 * (code // 8)).double()


# -- weights: [rows, columns] float32 to planes, one code an element, and planes to float64 ---------
def encode_u4g64(w: Tensor) -> Planes:
    """Codes 0..15 on a line through 64 weights: `code * gain + offset`; the larger end of the line is met exactly."""
    groups = w.reshape(len(w), -1, 64)
    low, high = groups.amin(-1), groups.amax(-1)
    negative = low.abs() > high.abs()
    step = ((high - low) / 15).clamp(min=1e-7)
    step = torch.where(negative, step, -step)
    edge = torch.where(negative, low, high)
    steps = torch.round(edge / step)
    gain = torch.where(steps != 0, edge / steps, step).bfloat16()
    offset = torch.where(steps != 0, edge, torch.zeros_like(edge)).bfloat16()
    code = torch.round((groups - offset.float()[..., None]) / gain.float()[..., None]).clamp(0, 15)
    return {"code": code.to(torch.uint8).reshape(w.shape), "gain": gain, "offset": offset}


def decode_u4g64(planes: Planes) -> Tensor:
    gain, offset = (planes[name].double().repeat_interleave(64, -1) for name in ("gain", "offset"))
    return planes["code"].double() * gain + offset


def encode_nvfp4(w: Tensor) -> Planes:
    """e2m1 codes times an e4m3 scale for each 16 weights times a float32 scale of the whole weight."""
    whole = w.abs().amax() / 2688  # 6 * 448
    blocks = w.reshape(len(w), -1, 16)
    top = blocks.abs().amax(-1)
    scale = e4m3(top / (6 * whole))
    smallest, one = (torch.tensor(value).to(torch.float8_e4m3fn).view(torch.uint8) for value in (2.0**-9, 1.0))
    byte = torch.where(top == 0, one, scale.view(torch.uint8).clamp(min=int(smallest)))
    divisor = byte.view(torch.float8_e4m3fn).float() * whole
    return {"code": e2m1(blocks / divisor[..., None]).to(torch.uint8).reshape(w.shape), "gain.code": byte, "gain.gain": whole}


def decode_nvfp4(planes: Planes) -> Tensor:
    scale = planes["gain.code"].view(torch.float8_e4m3fn).double().repeat_interleave(16, -1)
    return e2m1_value(planes["code"].long()) * scale * planes["gain.gain"].double()


def encode_tiles(w: Tensor) -> Planes:
    """e4m3 codes times a float32 scale for each tile of 128 by 128 weights; tiles at the edges may be smaller."""
    rows, columns = w.shape
    gain = torch.ones(-(-rows // 128), -(-columns // 128))
    for i in range(gain.shape[0]):
        for j in range(gain.shape[1]):
            top = w[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128].abs().amax() / LARGEST
            gain[i, j] = top if top > 0 else 1.0
    return {"code": e4m3(w / _by_tile(gain, w.shape)).view(torch.uint8), "gain": gain}


def decode_tiles(planes: Planes) -> Tensor:
    code = planes["code"].view(torch.float8_e4m3fn).double()
    return code * _by_tile(planes["gain"].double(), code.shape)


def _by_tile(gain: Tensor, shape: torch.Size) -> Tensor:
    return gain.repeat_interleave(128, 0)[: shape[0]].repeat_interleave(128, 1)[:, : shape[1]]


# -- activations and cells: float64, rounded as the dtype states through float32 --------------------
def runs_of_e4m3(x: Tensor) -> Tensor:
    """Each run of 128 columns as e4m3 codes times a float32 scale, max / 448."""
    parts = []
    for run in x.float().split(128, -1):
        scale = run.abs().amax(-1, keepdim=True) / LARGEST
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        parts.append(e4m3(run / scale).double() * scale.double())
    return torch.cat(parts, -1)


def unchanged(x: Tensor) -> Tensor:
    return x


ENCODE: dict[str, Callable[[Tensor], Planes]] = {"u4g64": encode_u4g64, "nvfp4": encode_nvfp4, "e4m3tile128a8": encode_tiles}
DECODE: dict[str, Callable[[Planes], Tensor]] = {"u4g64": decode_u4g64, "nvfp4": decode_nvfp4, "e4m3tile128a8": decode_tiles}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"e4m3tile128a8": runs_of_e4m3}
CELLS: dict[str, Callable[[Tensor], Tensor]] = {
    "e4m3": lambda x: e4m3(x.float()).double(), "bf16": lambda x: x.float().bfloat16().double(), "exact": unchanged,
}  # fmt: skip


def encoded(checkpoint: Mapping[str, Tensor], layers: int, dtype: str) -> dict[tuple[str, ...], Planes]:
    """The planes of every quantised weight, by the checkpoint tensors that are joined in it."""
    found = {}
    for layer in range(layers):
        for names in MATRICES:
            tensors = tuple(f"model.layers.{layer}.{name}.weight" for name in names)
            found[tensors] = ENCODE[dtype](torch.cat([checkpoint[name].float() for name in tensors]))
    return found


def values_of(checkpoint: Mapping[str, Tensor], layers: int, dtype: str) -> dict[str, Tensor]:
    """Every weight in float64, those of the layers' matrices as their codes say. dtype: "bf16" quantises nothing."""
    values = {name: tensor.double() for name, tensor in checkpoint.items()}
    for tensors, planes in encoded(checkpoint, layers, dtype).items() if dtype != "bf16" else ():
        sizes = [len(checkpoint[name]) for name in tensors]
        values.update(zip(tensors, DECODE[dtype](planes).split(sizes), strict=True))
    return values


# -- Llama ----------------------------------------------------------------------------------------
class Llama:
    """The decoder of Touvron et al., "LLaMA" (arXiv:2302.13971), with grouped-query attention, in float64.

    config: of transformers' LlamaForCausalLM. weights: float64 by checkpoint name. activations: applied to what a matrix of a
    layer is handed. cells: applied to keys, after their rotation, and to values. The norms' epsilon and the scale of scores are
    float32 numbers, as in the float32 class.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        activations: Callable[[Tensor], Tensor] = unchanged,
        cells: Callable[[Tensor], Tensor] = unchanged,
    ) -> None:
        self.config, self.weights, self.activations, self.cells = config, weights, activations, cells
        self.width = config["head_dim"]
        self.scale = float(torch.tensor(self.width**-0.5))
        self.eps = float(torch.tensor(config["rms_norm_eps"]))
        self.recorded: dict[str, Tensor] = {}

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits [tokens, vocabulary] of one sequence; `recorded` then holds every module's input and output."""
        depth = self.config["num_hidden_layers"]
        x = self.weights["model.embed_tokens.weight"][ids]
        self.recorded = {"module.model.embed_tokens.output": x, "hidden.0": x}
        for layer in range(depth):
            at = f"model.layers.{layer}."
            x = x + self._attention(layer, self._norm(at + "input_layernorm", x))
            y = self._norm(at + "post_attention_layernorm", x)
            gate, up = self._matrix(at + "mlp.gate_proj", y), self._matrix(at + "mlp.up_proj", y)
            x = x + self._matrix(at + "mlp.down_proj", gate / (1 + torch.exp(-gate)) * up)
            self.recorded[f"hidden.{layer + 1}"] = x
        x = self.recorded[f"hidden.{depth}"] = self._norm("model.norm", x)
        head = "model.embed_tokens.weight" if self.config["tie_word_embeddings"] else "lm_head.weight"
        self.recorded["module.lm_head.input"] = x
        self.recorded["module.lm_head.output"] = self.recorded["logits"] = x @ self.weights[head].T
        return self.recorded["logits"]

    def _norm(self, name: str, x: Tensor) -> Tensor:
        y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weights[f"{name}.weight"]
        self.recorded[f"module.{name}.input"], self.recorded[f"module.{name}.output"] = x, y
        return y

    def _matrix(self, name: str, x: Tensor) -> Tensor:
        y = self.activations(x) @ self.weights[f"{name}.weight"].T
        self.recorded[f"module.{name}.input"], self.recorded[f"module.{name}.output"] = x, y
        return y

    def _attention(self, layer: int, x: Tensor) -> Tensor:
        at = f"model.layers.{layer}.self_attn."
        q, k, v = (self._matrix(f"{at}{name}_proj", x).unflatten(-1, (-1, self.width)) for name in "qkv")  # [tokens, heads, width]
        q, k = self._turned(q), self._turned(k)
        keys, values = (self.cells(each).repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, keys) * self.scale
        later = torch.ones(len(x), len(x)).triu(1).bool()
        weights = torch.softmax(scores.masked_fill(later, -math.inf), -1)
        output = torch.einsum("hqk,khd->qhd", weights, values).flatten(1)
        for name, each in (("query", q), ("key", k), ("value", v), ("output", output)):
            self.recorded[f"attention.{layer}.{name}"] = each.flatten(1)
        return self._matrix(f"{at}o_proj", output)

    def _turned(self, x: Tensor) -> Tensor:
        """Channels i and i + width / 2 of each head as a pair, turned by position times the pair's frequency."""
        angles = torch.arange(len(x), dtype=torch.float64)[:, None, None] * self._frequencies()
        first, second = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _frequencies(self) -> Tensor:
        rope = self.config["rope_parameters"]
        plain = rope["rope_theta"] ** (-torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        if rope["rope_type"] == "default":
            return plain
        assert rope["rope_type"] == "llama3", rope["rope_type"]
        # Long waves are slowed by the factor, short ones kept, those between blended.
        turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
        kept = ((turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])).clamp(0, 1)
        return kept * plain + (1 - kept) * plain / rope["factor"]


# -- goldens --------------------------------------------------------------------------------------
def record(checkpoint: Path, weights: str, kv: str, tokens: int = TOKENS, greedy: int = GREEDY) -> dict[str, Tensor]:
    """What a deployment computes for the first tokens of a mini's prompt: the tensors that `record_original` keeps, in float32.

    weights: "e4m3tile128a8", "nvfp4", "u4g64" or "bf16". kv: "e4m3", "bf16", or "exact" to store keys and values as they are.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    stored = load_file(checkpoint / "model.safetensors")
    values = values_of(stored, config["num_hidden_layers"], weights)
    model = Llama(config, values, ACTIVATIONS.get(weights, unchanged), CELLS[kv])
    ids = load_file(checkpoint / "inputs.safetensors")["input_ids"].reshape(-1)[:tokens]
    model(ids)
    recorded = {name: tensor.float().contiguous() for name, tensor in model.recorded.items()}
    chosen_from = []
    for _ in range(greedy):  # no cache: every step runs the whole sequence anew
        chosen_from.append(model(ids)[-1])
        ids = torch.cat([ids, chosen_from[-1].argmax().view(1)])
    return recorded | {"greedy.ids": ids, "greedy.logits": torch.stack(chosen_from).float()}


def make_golden(checkpoint: Path, golden: Path, weights: str, kv: str) -> None:
    """Write a golden folder: inputs, expected, and a meta.json that says where the weights lie."""
    golden.mkdir(parents=True, exist_ok=True)
    recorded = record(checkpoint, weights, kv)
    save_file({"input_ids": recorded["greedy.ids"][None, :-GREEDY].contiguous()}, golden / "inputs.safetensors")
    # Tensors that are bits of another would be refused as shared memory.
    save_file({name: tensor.clone() for name, tensor in recorded.items()}, golden / "expected.safetensors")
    meta = {
        "class": "conformance.originals.quantised.Llama",
        "versions": {"torch": torch.__version__},
        "run": f"float64 over weights decoded from {weights}, with the roundings that {weights} and kv {kv} state",
        "precision": "f64",
        "checkpoint": f"../{checkpoint.name}",
    }
    (golden / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    for file in golden.iterdir():
        file.chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.originals.quantised", description="Write the goldens of the quantised deployments of the minis."
    )
    parser.add_argument("goldens", type=Path, help="folder of the minis' goldens, e.g. models/goldens/llama_3")
    goldens = parser.parse_args().goldens
    for model in MODELS:
        for weights, kv in RECIPES:
            make_golden(goldens / model, goldens / f"{model}-{weights}-kv-{kv}", weights, kv)


if __name__ == "__main__":
    main()
