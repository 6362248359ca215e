"""ops.elemwise by definition: each op with random operands, and its formula in float64 and plain loops."""

import math
from typing import Any

import numpy as np

from interp.evaluate import Given
from poem.dtypes import Dtype
from tests.interp.cases import Case, indices, value, weight

LANES = 3


# -- definitions: float64, plain loops ---------------------------------------------------------------------------------
def sigma(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


def rms(v: np.ndarray, eps: float) -> np.ndarray:
    return v / math.sqrt(sum(float(e) ** 2 for e in v) / len(v) + eps)


def by_run(x: np.ndarray, size: int, of_run: Any) -> np.ndarray:
    """of_run(run, first column) for every run of `size` columns of every row."""
    y = np.empty_like(x)
    for n in range(len(x)):
        for start in range(0, x.shape[1], size):
            y[n, start : start + size] = of_run(x[n, start : start + size], n, slice(start, start + size))
    return y


def gated_norm(x, gate, w, head_dim, eps, act, gate_first):
    a = gate * sigma(gate) if act == "silu" else sigma(gate)
    w = np.tile(w, x.shape[1] // len(w))
    if gate_first:
        return by_run(x * a, head_dim, lambda v, n, c: rms(v, eps) * w[c])
    return by_run(x, head_dim, lambda v, n, c: rms(v, eps) * w[c] * a[n, c])


def layer_norm(x, w=None, b=None, eps=1e-5):
    y = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + eps)
    return y * (1 if w is None else w) + (0 if b is None else b)


def modulated(x, m, lane_of_row=None, form="scale_shift"):
    m = m if lane_of_row is None else m[lane_of_row.reshape(-1)]
    if form == "scale_shift":
        return x * (1 + m[:, : x.shape[1]]) + m[:, x.shape[1] :]
    return x * (1 + m) if form == "scale" else np.tanh(m) * x


def gated_sum(r, g, y, lane_of_row=None):
    return r + (g if lane_of_row is None else g[lane_of_row.reshape(-1)]) * y


def sylvester(size: int) -> np.ndarray:
    h = np.ones((1, 1))
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    return h


def rotated_axes(x, positions, dims, thetas, form, rotary_dim, head_dim):
    y = x.copy()
    axes = positions.shape[1]
    for n in range(len(x)):
        for head in range(x.shape[1] // head_dim):
            start = 0
            for axis in range(axes):
                for i in range(dims[axis] // 2):
                    angle = positions[n, axis] * thetas[axis] ** (-2 * i / dims[axis])
                    if form == "interleaved":
                        a, b = start + 2 * i, start + 2 * i + 1
                    elif form == "split":
                        a, b = start + i, start + dims[axis] // 2 + i
                    else:
                        a, b = start // 2 + i, start // 2 + i + rotary_dim // 2
                    a, b = head * head_dim + a, head * head_dim + b
                    y[n, a] = x[n, a] * math.cos(angle) - x[n, b] * math.sin(angle)
                    y[n, b] = x[n, b] * math.cos(angle) + x[n, a] * math.sin(angle)
                start += dims[axis]
    return y


def ladder(x, positions, dims, thetas, form, rotary_dim, head_dim):
    y = x.copy()
    half, axes = head_dim // 2, positions.shape[1]
    pad = (x.shape[1] - sum(dims)) // 2
    count = dims[0] // 2
    for n in range(len(x)):
        for g in range(pad, x.shape[1] // 2):
            axis, rung = (g - pad) % axes, (g - pad) // axes
            angle = positions[n, axis] * thetas[axis] ** (rung / (count - 1) if count > 1 else 0)
            a = g // half * head_dim + g % half
            b = a + half
            y[n, a] = x[n, a] * math.cos(angle) - x[n, b] * math.sin(angle)
            y[n, b] = x[n, b] * math.cos(angle) + x[n, a] * math.sin(angle)
    return y


def blended(prefix, blocks, norm, eps, proj, scale=1.0, values="raw"):
    history = [*blocks, prefix]
    y = np.zeros_like(prefix)
    for n in range(len(prefix)):
        normed = [rms(v[n], eps) * norm for v in history]
        e = np.exp([scale * float(row @ proj) for row in normed])
        for share, raw, row in zip(e / e.sum(), history, normed, strict=True):
            y[n] += share * (raw[n] if values == "raw" else row)
    return y


def gates_of_streams(mixes, streams, scale, base, stream_count, eps, alpha, sinkhorn):
    m, rows = stream_count, len(mixes)
    apart = streams.reshape(rows, m, -1)
    x, post, comb = np.zeros_like(apart[:, 0]), np.empty((rows, m)), np.empty((rows, m, m))
    for n in range(rows):
        for i in range(m):
            x[n] += (sigma(mixes[n, i] * scale[0] + base[i]) + eps) * apart[n, i]
            post[n, i] = alpha * sigma(mixes[n, m + i] * scale[1] + base[m + i])
        c = (mixes[n, 2 * m :] * scale[2] + base[2 * m :]).reshape(m, m)
        c = np.exp(c) / np.exp(c).sum(1, keepdims=True) + eps
        c /= c.sum(0, keepdims=True) + eps
        for _ in range(sinkhorn - 1):
            c /= c.sum(1, keepdims=True) + eps
            c /= c.sum(0, keepdims=True) + eps
        comb[n] = c
    return x, post, comb


def folded(x, streams, post, comb):
    m = post.shape[1]
    mixed = np.einsum("nij,nih->njh", comb.reshape(-1, m, m), streams.reshape(len(x), m, -1))
    return mixed + post[:, :, None] * x[:, None]


def collapsed(mixes, streams, scale, base, stream_count, eps):
    return np.einsum("ns,nsh->nh", sigma(mixes * scale + base) + eps, streams.reshape(len(mixes), stream_count, -1))


def gated_memory(key, query, value, stream_count):
    d = (key * query).reshape(len(key), stream_count, -1).sum(2) / math.sqrt(value.shape[1])
    return sigma(np.sign(d) * np.sqrt(np.maximum(abs(d), float(np.float32(1e-6)))))[:, :, None] * value[:, None]


# -- cases --------------------------------------------------------------------------------------------------------------
def one(op: str, define: Any, width: int = 13, form: str = "", rounds_inside: bool = False, **named: Any) -> Case:
    """An op of one value x, and attributes or `weight shapes` (tuples)."""

    def draw(rng: np.random.Generator, rows: int, dtype: str) -> dict[str, Any]:
        made = {name: weight(rng, *given) if isinstance(given, tuple) else given for name, given in named.items()}
        return {"x": value(rng, rows, width, dtype), **made}

    return Case(f"elemwise.{op}", draw, define, form, rounds_inside)


def two(op: str, define: Any, second: str = "y", widths: tuple[int, int] = (13, 13), second_dtype: str = "", **named: Any) -> Case:
    """An op of two values."""

    def draw(rng: np.random.Generator, rows: int, dtype: str) -> dict[str, Any]:
        return {"x": value(rng, rows, widths[0], dtype), second: value(rng, rows, widths[1], second_dtype or dtype), **named}

    return Case(f"elemwise.{op}", draw, define, second_dtype)


def gated(act: str, gate_first: bool, gain: int) -> Case:
    def draw(rng: np.random.Generator, rows: int, dtype: str) -> dict[str, Any]:
        return {
            "x": value(rng, rows, 12), "gate": value(rng, rows, 12, dtype), "w": weight(rng, gain), "head_dim": 4, "eps": 1e-6, "act": act,
            "gate_first": gate_first,
        }  # fmt: skip

    return Case("elemwise.rmsnorm_gated", draw, gated_norm, f"{act}-{'gate' if gate_first else 'norm'}-first-{gain}")


def mapped(op: str, define: Any, by_lane: bool, width: int = 12, **named: Any) -> Case:
    """gated_residual_add and modulate, with a table of lanes or a row each."""

    def draw(rng: np.random.Generator, rows: int, dtype: str) -> dict[str, Any]:
        table = value(rng, LANES, width, "f32", "lanes") if by_lane else value(rng, rows, width, dtype)
        lanes = {"lane_of_row": indices(rng, rows, 1, 0, LANES)} if by_lane else {}
        x = value(rng, rows, 6, dtype)
        if op == "modulate":
            return {"x": x, "m": table, **lanes, **named}
        return {"r": x, "g": table, "y": value(rng, rows, 6, dtype), **lanes}

    return Case(f"elemwise.{op}", draw, define, f"{named.get('form', '')}-by-{'lane' if by_lane else 'row'}")


def axes_case(form: str, axes: int, dims: list[int], rotary_dim: int, head_dim: int, width: int) -> Case:
    def draw(rng: np.random.Generator, rows: int, dtype: str) -> dict[str, Any]:
        positions = Given(rng.uniform(-4, 4, (rows, axes)).astype(np.float32), "f32")
        thetas = [3.0, 100.0, 5.0, 7.0][:axes] + [0.0] * (len(dims) - axes)
        return {
            "x": value(rng, rows, width, dtype), "positions": positions, "dims": dims, "thetas": thetas, "form": form,
            "rotary_dim": rotary_dim, "head_dim": head_dim,
        }  # fmt: skip

    return Case("elemwise.rope_axes", draw, ladder if form == "split_ladder" else rotated_axes, f"{form}-{axes}")


def blend(blocks: int, values: str) -> Case:
    def draw(rng: np.random.Generator, rows: int, dtype: str) -> dict[str, Any]:
        return {
            "prefix": value(rng, rows, 9, dtype), "blocks": [value(rng, rows, 9, dtype) for _ in range(blocks)], "norm": weight(rng, 9),
            "eps": 1e-6, "proj": weight(rng, 9), "scale": 0.5, "values": values,
        }  # fmt: skip

    return Case("elemwise.res_blend", draw, blended, f"{values}-{blocks}")


def streams_case(op: str, define: Any, **kinds: Any) -> Case:
    """kinds: "activation width", ("f32", width) for an f32 value, (shape,) for a weight, or an attribute."""

    def draw(rng: np.random.Generator, rows: int, dtype: str) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, kind in kinds.items():
            if isinstance(kind, str):
                made[name] = value(rng, rows, int(kind), dtype)
            elif isinstance(kind, tuple) and kind[0] == "f32":
                made[name] = value(rng, rows, kind[1])
            elif isinstance(kind, tuple):
                made[name] = weight(rng, *kind)
            else:
                made[name] = kind
        return made

    return Case(f"elemwise.{op}", draw, define)


def clamped(x, lo, hi):
    return np.minimum(np.maximum(x, np.float32(lo)), np.float32(hi))


CASES = [
    two("add", lambda x, y: x + y),
    two("mul", lambda x, y: x * y),
    two("residual_add", lambda x, y: x + y),
    two("gate_sigmoid_mul", lambda x, gate: x * sigma(gate), "gate"),
    two("gate_sigmoid_mul", lambda x, gate: x * sigma(gate), "gate", second_dtype="f32"),
    two(
        "gate_sigmoid_mul_heads", lambda x, gate, head_dim, scale: x * scale * np.repeat(sigma(gate), head_dim, axis=1), "gate", (12, 3),
        head_dim=4, scale=2.0,
    ),
    one("mul_scalar", lambda s, x: x * np.float32(s), s=0.3, rounds_inside=True),
    one("scale", lambda s, x: x * s[0], s=(1,)),
    one("silu_scaled", lambda s, x: np.float32(s) * x * sigma(np.float32(s) * x), s=0.3),
    one("clamp", clamped, lo=-0.3, hi=0.7, rounds_inside=True),
    one("clamp_learned", lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi), lo=(1,), hi=(1,)),
    one("copy", lambda x: x),
    one("cast", lambda x, dtype: x, dtype=Dtype("f32")),
    one("add_bias", lambda bias, x: x + bias, bias=(13,)),
    one("standardize", lambda x, bias, scale: (x - bias) * scale, bias=(13,), scale=(13,)),
    one("silu", lambda x: x * sigma(x)),
    one("gelu", lambda x, tanh: 0.5 * x * (1 + erf(x / math.sqrt(2))), tanh=False),
    one("gelu", lambda x, tanh: 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))), tanh=True, form="tanh"),
    one("tanh", lambda x: np.tanh(x)),
    one("relu", lambda x: np.maximum(x, 0)),
    one("relu2", lambda x: np.maximum(x, 0) ** 2),
    one("rmsnorm", lambda x, w, eps: by_run(x, 13, lambda v, n, c: rms(v, eps) * w), w=(13,), eps=1e-6),
    one("rmsnorm_plus_one", lambda x, w, eps: by_run(x, 13, lambda v, n, c: rms(v, eps) * (1 + w)), w=(13,), eps=1e-6),
    one(
        "rmsnorm_per_head", lambda x, w, head_dim, eps: by_run(x, head_dim, lambda v, n, c: rms(v, eps) * w), 12,
        w=(4,), head_dim=4, eps=1e-6,
    ),
    one(
        "rmsnorm_per_head_plus_one", lambda x, w, head_dim, eps: by_run(x, head_dim, lambda v, n, c: rms(v, eps) * (1 + w)), 12,
        w=(4,), head_dim=4, eps=1e-6,
    ),
    one("rmsnorm_no_scale", lambda x, head_dim, eps: by_run(x, head_dim, lambda v, n, c: rms(v, eps)), 12, head_dim=4, eps=1e-6),
    one(
        "rmsnorm_grouped_plus_one", lambda x, w, group, eps: by_run(x, group, lambda v, n, c: rms(v, eps) * (1 + w[c])), 12,
        w=(12,), group=4, eps=1e-6,
    ),
    *[gated(act, gate_first, gain) for act in ("silu", "sigmoid") for gate_first in (False, True) for gain in (4, 12)],
    Case(
        "elemwise.rmsnorm_gated_by",
        lambda rng, rows, dtype: {
            "x": value(rng, rows, 12), "gate": value(rng, rows, 12, dtype), "w": weight(rng, 4), "heads": 3, "eps": 1e-6,
        },
        lambda x, gate, w, heads, eps: gated_norm(x, gate, w, 4, eps, "sigmoid", False),
    ),
    one("layernorm", layer_norm, w=(13,), b=(13,), eps=1e-5),
    one("layernorm", layer_norm, eps=1e-5, form="bare"),
    one("layernorm_no_scale", layer_norm, eps=1e-5),
    *[
        mapped("gated_residual_add", gated_sum, lanes, 6) for lanes in (True, False)
    ],
    *[
        mapped("modulate", modulated, lanes, 12 if form == "scale_shift" else 6, form=form)
        for lanes in (True, False) for form in ("scale_shift", "scale", "tanh_gate")
    ],
    one("hadamard", lambda x, block: (x.reshape(len(x), -1, block) @ sylvester(block).T / math.sqrt(block)), 16, block=8),
    one(
        "hadamard", lambda x, block, signs: ((x * np.resize(signs, 16)).reshape(len(x), -1, block) @ sylvester(block).T / math.sqrt(block)),
        16, block=4, signs=(3,), form="signed",
    ),
    *[blend(blocks, values) for blocks in (0, 1, 9) for values in ("raw", "normed")],
    axes_case("interleaved", 3, [4, 6, 2], 12, 16, 32),
    axes_case("split", 2, [8, 4], 12, 14, 28),
    axes_case("neox", 4, [2, 4, 6, 4], 16, 18, 36),
    axes_case("interleaved", 2, [4, 4, 0, 0], 8, 8, 16),
    axes_case("split_ladder", 3, [4, 4, 4], 8, 8, 16),
    axes_case("split_ladder", 2, [2, 2], 4, 4, 8),
    Case(
        "elemwise.sinusoid",
        lambda rng, rows, dtype: {"t": value(rng, rows, 1), "dim": 12, "max_period": 100.0, "flip_sin_cos": True, "scale": 3.0},
        lambda t, dim, max_period, flip_sin_cos, scale: np.concatenate(
            [f(scale * t * max_period ** (-np.arange(6) / 6)) for f in (np.cos, np.sin)], 1,
        ),
    ),
    streams_case("hc_expand", lambda x, stream_count: np.concatenate([x] * stream_count, 1), x="5", stream_count=3),
    streams_case("hc_rmsnorm_f32", lambda streams, eps: by_run(streams, 15, lambda v, n, c: rms(v, eps)), streams="15", eps=1e-6),
    streams_case(
        "hc_project", lambda normed, dynamic, stream_count: normed @ dynamic.T, normed=("f32", 15), dynamic=(15, 15), stream_count=3,
    ),
    streams_case(
        "hc_gates", gates_of_streams, mixes=("f32", 15), streams="15", scale=(3,), base=(15,), stream_count=3, eps=1e-6, alpha=2.0,
        sinkhorn=3,
    ),
    streams_case("hc_fold", folded, x="5", streams="15", post=("f32", 3), comb=("f32", 9)),
    streams_case("hc_collapse", collapsed, mixes=("f32", 3), streams="15", scale=(1,), base=(3,), stream_count=3, eps=1e-6),
    streams_case("hc_mean", lambda streams, stream_count: streams.reshape(len(streams), 3, 5).mean(1), streams="15", stream_count=3),
    streams_case(
        "hc_mix", lambda gates, normed, stream_count: (sigma(gates) * normed).reshape(len(gates), 3, 5).mean(1), gates="15", normed="15",
        stream_count=3,
    ),
    streams_case(
        "hc_inject",
        lambda o, gates, stream_count, hyper: hyper.reshape(len(o), 3, 5) + 2 * sigma(gates / 3)[:, :, None] * o[:, None],
        o="5", gates="3", stream_count=3, hyper="15",
    ),
    streams_case("ple_gate", gated_memory, key="15", query="15", value="5", stream_count=3),
]  # fmt: skip
