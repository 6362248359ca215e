"""Bounds hold for every f32 run, on hostile operands too, and are not so loose that they would hide a fault."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance.arithmetic import NATIVE, ORIGINAL
from conformance.bounds import BOUNDS, Cells, local_bound
from conformance.bounds.record import BoundFunction
from poem.batch import Chunk, Geometry, geometry
from poem.ops import REGISTRY

try:
    import torch
except ModuleNotFoundError:  # extra `oracles`; the same cases then run in NumPy alone
    torch = None  # type: ignore[assignment]
needs_torch = pytest.mark.skipif(torch is None, reason="needs the extra `oracles`")

FLAVOURS = ("normal", "integers", "huge", "tiny", "cancelling", "spread")
SEEDS = range(3)
# A bound that no run of these cases comes within this factor of would say nothing.
LOOSEST = 300.0


def draw(rng: np.random.Generator, shape: tuple[int, ...], flavour: str) -> np.ndarray:
    """Operands as float32 values."""
    x = rng.standard_normal(shape)
    if flavour == "integers":
        x = rng.integers(-3, 4, shape)
    elif flavour == "huge":
        x *= 1e12
    elif flavour == "tiny":
        x *= 1e-22
    elif flavour == "cancelling":
        x = np.concatenate([x[..., : shape[-1] // 2], -x[..., : shape[-1] - shape[-1] // 2]], -1) * (1 + 1e-6 * rng.standard_normal(shape))
    elif flavour == "spread":
        x *= 10.0 ** rng.uniform(-6, 6, shape)
    return np.asarray(x, np.float32)


class NumPy:
    """The functions that the formulas below use, in NumPy."""

    exp, tanh, sqrt, log, sin, cos = np.exp, np.tanh, np.sqrt, np.log, np.sin, np.cos
    where, concatenate = np.where, staticmethod(np.concatenate)
    sum = staticmethod(lambda x: np.sum(x, -1, keepdims=True))
    mean = staticmethod(lambda x: np.mean(x, -1, keepdims=True, dtype=x.dtype))
    max = staticmethod(lambda x: np.max(x, -1, keepdims=True))
    erf = staticmethod(lambda x: np.vectorize(math.erf, otypes=[x.dtype])(x))


class Torch:
    """The same in torch, whose names differ little."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def concatenate(self, parts: list[Any], axis: int) -> Any:
        return torch.cat(parts, axis)

    def sum(self, x: Any) -> Any:
        return x.sum(-1, keepdim=True)

    def mean(self, x: Any) -> Any:
        return x.mean(-1, keepdim=True)

    def max(self, x: Any) -> Any:
        return x.max(-1, keepdim=True).values


TORCH = Torch()
LIBRARIES: list[tuple[str, Any]] = [("NumPy", NumPy)] + ([("torch", TORCH)] if torch is not None else [])


# -- formulas, on real numbers in float64 and in f32 by NumPy and torch -------------------------------
def sigmoid(m: Any, x: Any) -> Any:
    return 1 / (1 + m.exp(-x))


def gelu_tanh(m: Any, x: Any) -> Any:
    return 0.5 * x * (1 + m.tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x))))


def rms(m: Any, x: Any, eps: float) -> Any:
    return x / m.sqrt(m.mean(x * x) + eps)


def layernorm(m: Any, x: Any, w: Any, b: Any, eps: float) -> Any:
    centred = x - m.mean(x)
    return centred / m.sqrt(m.mean(centred * centred) + eps) * w + b


def glu(m: Any, x: Any, inter: int, act: str = "silu", alpha: float | None = None, limit: float | None = None) -> Any:
    g, u = x[:, :inter], x[:, inter:]
    if limit is not None:
        g, u = m.where(g < limit, g, g * 0 + limit), m.where(u < limit, m.where(u > -limit, u, u * 0 - limit), u * 0 + limit)
    if alpha is not None:
        return (u + 1) * (g * sigmoid(m, alpha * g))
    return (gelu_tanh(m, g) if act == "gelu_tanh" else g * sigmoid(m, g)) * u


def softmax_attention(
    m: Any, q: Any, k: Any, v: Any, head_dim: int, kv_heads: int, scale: float, window: int | None, softcap: float | None, sinks: Any
) -> Any:
    """One lane, no cells before: q [N, Hq*D], k [N, Hkv*D], v [N, Hkv*Dv]."""
    rows, heads = q.shape[0], q.shape[1] // head_dim
    p, j = np.arange(rows)[:, None], np.arange(rows)[None, :]
    allowed = (j <= p) & (p - j < (window or rows))
    mask = np.where(allowed, 0.0, -np.inf).astype(np.float32)
    mask = torch.from_numpy(mask) if m is TORCH else mask.astype(q.dtype)
    out = []
    for h in range(heads):
        g = h // (heads // kv_heads)
        width = v.shape[1] // kv_heads
        s = (q[:, h * head_dim : (h + 1) * head_dim] @ k[:, g * head_dim : (g + 1) * head_dim].T) * scale
        if softcap is not None:
            s = softcap * m.tanh(s / softcap)
        s = s + mask
        if sinks is not None:
            s = m.concatenate([s, s[:, :1] * 0 + sinks[h]], 1)
        e = m.exp(s - m.max(s))
        e = (e / m.sum(e))[:, :rows]
        out.append(e @ v[:, g * width : (g + 1) * width])
    return m.concatenate(out, 1)


def rope(
    m: Any, q: Any, k: Any, positions: Any, head_dim: int, theta: float, rotated: int, form: str, linear: float, inverse: bool
) -> tuple[Any, Any]:
    """Frequencies as transformers computes them, in the precision of q."""
    kind = torch.from_numpy if m is TORCH else np.asarray
    real = np.float32 if m is TORCH else q.dtype.type
    exponents = np.arange(0, rotated, 2).astype(real) / real(rotated)
    frequencies = kind((real(1) / np.power(real(theta), exponents)) / real(linear))
    angle = kind(positions.astype(real))[:, None] * frequencies
    cos, sin = m.cos(angle), m.sin(angle)
    if inverse:
        sin = -sin
    half = rotated // 2
    first, second = (np.arange(half), np.arange(half) + half) if form == "half" else (np.arange(half) * 2, np.arange(half) * 2 + 1)

    def turn(x: Any) -> Any:
        out = x.clone() if m is TORCH else x.copy()
        for h in range(x.shape[1] // head_dim):
            a, b = x[:, h * head_dim + first], x[:, h * head_dim + second]
            out[:, h * head_dim + first], out[:, h * head_dim + second] = a * cos - b * sin, b * cos + a * sin
        return out

    return turn(q), turn(k)


# -- cases: operands and attributes, and the formula over them ----------------------------------------
Case = tuple[dict[str, Any], Callable[[Any, dict[str, Any]], Any]]
N, W = 5, 48
TAPS = np.array([[0, 3], [1, 1], [2, 0]])


def elementwise(op: str, rng: np.random.Generator, flavour: str) -> Case:
    x, y, w = draw(rng, (N, W), flavour), draw(rng, (N, W), flavour), draw(rng, (W,), "normal")
    unary: dict[str, Callable[[Any, Any], Any]] = {
        "elemwise.silu": lambda m, x: x * sigmoid(m, x),
        "elemwise.tanh": lambda m, x: m.tanh(x),
        "elemwise.relu": lambda m, x: m.where(x > 0, x, x * 0),
        "elemwise.relu2": lambda m, x: m.where(x > 0, x, x * 0) * m.where(x > 0, x, x * 0),
        "linear.gelu_tanh": gelu_tanh,
    }
    if op in unary:
        return {"x": x}, lambda m, given: unary[op](m, given["x"])
    cases: dict[str, Case] = {
        "elemwise.add": ({"x": x, "y": y}, lambda m, g: g["x"] + g["y"]),
        "elemwise.residual_add": ({"x": x, "y": y}, lambda m, g: g["y"] + g["x"]),
        "elemwise.mul": ({"x": x, "y": y}, lambda m, g: g["x"] * g["y"]),
        "elemwise.mul_scalar": ({"s": float(np.float32(0.3)), "x": x}, lambda m, g: g["x"] * g["s"]),
        "elemwise.scale": ({"s": w[:1], "x": x}, lambda m, g: g["x"] * g["s"][0]),
        "elemwise.add_bias": ({"bias": w, "x": x}, lambda m, g: g["x"] + g["bias"]),
        "elemwise.standardize": ({"x": x, "bias": w, "scale": w}, lambda m, g: (g["x"] - g["bias"]) * g["scale"]),
        "elemwise.gate_sigmoid_mul": ({"x": x, "gate": y}, lambda m, g: g["x"] * sigmoid(m, g["gate"])),
        "elemwise.silu_scaled": ({"s": 0.5, "x": x}, lambda m, g: 0.5 * g["x"] * sigmoid(m, 0.5 * g["x"])),
        "elemwise.clamp": ({"x": x, "lo": -0.5, "hi": 0.75}, lambda m, g: g["x"].clip(-0.5, 0.75)),
        "elemwise.gelu": ({"x": x, "tanh": False}, lambda m, g: 0.5 * g["x"] * (1 + m.erf(g["x"] * 0.7071067811865476))),
        "elemwise.cast": ({"x": x, "dtype": "bf16"}, lambda m, g: g["x"] * 1),
        "attn.logit_softcap": ({"x": x, "cap": 3.0}, lambda m, g: 3.0 * m.tanh(g["x"] / 3.0)),
        "linear.matmul": ({"x": x, "w": draw(rng, (7, W), flavour), "out": None}, lambda m, g: g["x"] @ g["w"].T),
        "linear.lm_head": ({"x": x, "w": draw(rng, (7, W), flavour), "out": None}, lambda m, g: g["x"] @ g["w"].T),
        "linear.glu": (
            {"x": x, "inter": W // 2, "act": "silu", "up": None, "limit": None, "alpha": None, "beta": None, "up_cap": None},
            lambda m, g: glu(m, g["x"], W // 2),
        ),
        "elemwise.rmsnorm": ({"x": x, "w": w, "eps": 1e-5}, lambda m, g: rms(m, g["x"], 1e-5) * g["w"]),
        "elemwise.rmsnorm_plus_one": ({"x": x, "w": w, "eps": 1e-5}, lambda m, g: rms(m, g["x"], 1e-5) * (1 + g["w"])),
        "elemwise.rmsnorm_per_head": (
            {"x": x, "w": w[:16], "head_dim": 16, "eps": 1e-6},
            lambda m, g: (rms(m, g["x"].reshape(N, -1, 16), 1e-6) * g["w"]).reshape(N, W),
        ),
        "elemwise.rmsnorm_per_head_plus_one": (
            {"x": x, "w": w[:16], "head_dim": 16, "eps": 1e-6},
            lambda m, g: (rms(m, g["x"].reshape(N, -1, 16), 1e-6) * (1 + g["w"])).reshape(N, W),
        ),
        "elemwise.rmsnorm_no_scale": (
            {"x": x, "head_dim": 16, "eps": 1e-6}, lambda m, g: rms(m, g["x"].reshape(N, -1, 16), 1e-6).reshape(N, W),
        ),
        "elemwise.rmsnorm_grouped_plus_one": (
            {"x": x, "w": w, "group": 16, "eps": 1e-6},
            lambda m, g: rms(m, g["x"].reshape(N, -1, 16), 1e-6).reshape(N, W) * (1 + g["w"]),
        ),
        "elemwise.rmsnorm_gated": (
            {"x": x, "gate": draw(rng, (N, W), "normal"), "w": w[:16], "head_dim": 16, "eps": 1e-6, "act": "silu", "gate_first": False},
            lambda m, g: (rms(m, g["x"].reshape(N, -1, 16), 1e-6) * g["w"]).reshape(N, W) * (g["gate"] * sigmoid(m, g["gate"])),
        ),
        "elemwise.layernorm": (
            {"x": x, "w": w, "b": w, "eps": 1e-5}, lambda m, g: layernorm(m, g["x"], g["w"], g["b"], 1e-5),
        ),
        "elemwise.layernorm_no_scale": ({"x": x, "eps": 1e-5}, lambda m, g: layernorm(m, g["x"], 1, 0, 1e-5)),
        "linear.matmul_grouped": (
            {"x": x, "w": draw(rng, (6, W // 2), flavour), "routes": np.tile(np.arange(2), (N, 1)), "groups": 2},
            lambda m, g: m.concatenate([g["x"][:, i * 24 : i * 24 + 24] @ g["w"][i * 3 : i * 3 + 3].T for i in (0, 1)], 1),
        ),
        "gather.embed_weighted": (
            {"ids": TAPS, "weights": draw(rng, (3, 2), "normal"), "table": draw(rng, (4, W), flavour), "vocab": 4},
            lambda m, g: g["weights"][:, :1] * g["table"][[0, 1, 2]] + g["weights"][:, 1:] * g["table"][[3, 1, 0]],
        ),
        "gather.pool_rows": (
            {"x": draw(rng, (8, W), flavour), "side": 2},
            lambda m, g: (g["x"][0::4] + g["x"][1::4] + g["x"][2::4] + g["x"][3::4]) / 4,
        ),
    }  # fmt: skip
    return cases[op]


ELEMENTWISE = [
    "elemwise.silu", "elemwise.tanh", "elemwise.relu", "elemwise.relu2", "linear.gelu_tanh", "elemwise.add", "elemwise.residual_add",
    "elemwise.mul", "elemwise.mul_scalar", "elemwise.scale", "elemwise.add_bias", "elemwise.standardize", "elemwise.gate_sigmoid_mul",
    "elemwise.silu_scaled", "elemwise.clamp", "elemwise.gelu", "elemwise.cast", "attn.logit_softcap", "linear.matmul", "linear.lm_head",
    "linear.glu", "elemwise.rmsnorm", "elemwise.rmsnorm_plus_one", "elemwise.rmsnorm_per_head", "elemwise.rmsnorm_per_head_plus_one",
    "elemwise.rmsnorm_no_scale", "elemwise.rmsnorm_grouped_plus_one", "elemwise.rmsnorm_gated", "elemwise.layernorm",
    "elemwise.layernorm_no_scale", "linear.matmul_grouped", "gather.embed_weighted", "gather.pool_rows",
]  # fmt: skip
EXACT_OPS = {"elemwise.relu", "elemwise.clamp", "elemwise.cast"}  # their only error is the rounding of the result


def evaluated(m: Any, kind: Any, formula: Callable[[Any, dict[str, Any]], Any], arguments: dict[str, Any]) -> np.ndarray:
    def convert(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            return value
        return torch.from_numpy(value) if m is TORCH else value.astype(kind)

    with np.errstate(all="ignore"):
        result = formula(m, {name: convert(value) for name, value in arguments.items()})
    return result.numpy() if m is TORCH else np.asarray(result)


def worst_fraction(got: np.ndarray, exact: np.ndarray, bound: np.ndarray, what: str) -> float:
    """max |got - exact| / bound over the finite results; fails where it passes 1."""
    assert bound.shape == exact.shape, f"{what}: the bound is {bound.shape}, the result {exact.shape}"
    assert not np.isnan(bound).any(), f"{what}: the bound is NaN at {np.argwhere(np.isnan(bound))[0]}"
    fits = np.isfinite(got) & (np.abs(exact) < 1e38)
    error = np.where(fits, np.abs(got.astype(np.float64) - np.where(fits, exact, 0.0)), 0.0)
    over = error > bound
    if over.any():
        at = tuple(np.argwhere(over)[0])
        pytest.fail(f"{what}{list(map(int, at))}: got {got[at]!r}, exact {exact[at]!r}, error {error[at]:.3e} > bound {bound[at]:.3e}")
    inside = (bound > 0) & (error > 0)
    return float((error[inside] / bound[inside]).max(initial=0.0))


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_no_f32_run_breaks_the_bound_and_some_run_comes_near_it(op: str) -> None:
    closest = 0.0
    for flavour in FLAVOURS:
        for seed in SEEDS:
            arguments, formula = elementwise(op, np.random.default_rng([seed, *map(ord, op)]), flavour)
            exact = evaluated(NumPy, np.float64, formula, arguments)
            bound = local_bound(op, wide(arguments), (exact,), ("f32",), ORIGINAL)[0].error
            for name, library in LIBRARIES:
                got = evaluated(library, np.float32, formula, arguments)
                closest = max(closest, worst_fraction(got, exact, bound, f"{op} {flavour} seed {seed} {name}"))
    print(f"{op}: closest run at {closest:.3f} of the bound")
    assert op in EXACT_OPS or closest * LOOSEST > 1, f"{op}: the closest run is at {closest:.2e} of the bound"


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_a_result_rounded_to_bf16_stays_within_the_native_bound(op: str) -> None:
    closest = 0.0
    for flavour in FLAVOURS:
        arguments, formula = elementwise(op, np.random.default_rng([7, *map(ord, op)]), flavour)
        exact = evaluated(NumPy, np.float64, formula, arguments)
        bound = local_bound(op, wide(arguments), (exact,), ("bf16",), NATIVE)[0].error
        with np.errstate(over="ignore"):
            got = evaluated(NumPy, np.float32, formula, arguments).astype(ml_dtypes.bfloat16).astype(np.float32)
        closest = max(closest, worst_fraction(got, exact, bound, f"{op} {flavour}"))
    assert closest > 0.3, f"{op}: rounding to bf16 dominates, yet the closest run is at {closest:.2e} of the bound"


@pytest.mark.parametrize("op", [op for op in ELEMENTWISE if op not in ("linear.matmul", "linear.lm_head")])
def test_a_bound_is_the_formula_of_its_op_once_more(op: str) -> None:
    """The values that running error analysis carries along are the op's exact results."""
    arguments, formula = elementwise(op, np.random.default_rng(3), "normal")
    exact = evaluated(NumPy, np.float64, formula, wide(arguments))
    running = local_bound(op, wide(arguments), (exact,), ("f32",), ORIGINAL)[0]
    np.testing.assert_allclose(running.value, exact, rtol=1e-12, atol=1e-300)


def wide(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value
        for name, value in arguments.items()
    }


def one_lane(rows: int) -> Geometry:
    return geometry([Chunk(0, [0] * rows)], {0: 0}, [])


@pytest.mark.parametrize("options", [{}, {"window": 3}, {"softcap": 1.5}, {"sinks": True}], ids=str)
@pytest.mark.parametrize("flavour", ["normal", "integers", "sharp", "cancelling"])
def test_attention_in_f32_stays_within_its_bound(flavour: str, options: dict[str, Any]) -> None:
    closest = 0.0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        rows, head_dim, heads, kv_heads, width = 9, 16, 4, 2, 12
        sharp = 6.0 if flavour == "sharp" else 1.0
        kind = "normal" if flavour == "sharp" else flavour
        q, k = draw(rng, (rows, heads * head_dim), kind) * np.float32(sharp), draw(rng, (rows, kv_heads * head_dim), kind)
        v = draw(rng, (rows, kv_heads * width), kind)
        sinks = draw(rng, (heads,), "normal") if options.get("sinks") else None
        window, softcap, scale = options.get("window"), options.get("softcap"), 0.25

        def run(m: Any, kind: Any) -> np.ndarray:
            given = [x if x is None else torch.from_numpy(x) if m is TORCH else x.astype(kind) for x in (q, k, v, sinks)]  # noqa: B023
            out = softmax_attention(m, *given[:3], head_dim, kv_heads, scale, window, softcap, given[3])  # noqa: B023
            return out.numpy() if m is TORCH else out

        exact = run(NumPy, np.float64)
        arguments = {
            "q": q.astype(np.float64), "cache": Cells([(k.astype(np.float64), v.astype(np.float64))], "bf16"), "inputs": one_lane(rows),
            "head_dim": head_dim, "kv_heads": kv_heads, "sm_scale": scale, "window": window, "causal": True, "softcap": softcap,
            "mask": None, "sinks": None if sinks is None else sinks.astype(np.float64), "bias": None, "selection": None, "ratio": 1,
            "log_scaling": None, "lse": False,
        }  # fmt: skip
        bound = local_bound("attn.attend", arguments, (exact,), ("f32",), ORIGINAL)[0].error
        for name, library in LIBRARIES:
            got = run(library, np.float32)
            closest = max(closest, worst_fraction(got, exact, bound, f"attend {flavour} {options} seed {seed} {name}"))
        if not options and torch is not None:
            parts = [torch.from_numpy(x.reshape(rows, -1, d).swapaxes(0, 1)[None]) for x, d in ((q, head_dim), (k, head_dim), (v, width))]
            fused = (
                torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True, scale=scale, enable_gqa=True)[0]
                .transpose(0, 1)
                .reshape(rows, -1)
            )
            worst_fraction(fused.numpy(), exact, bound, f"attend {flavour} seed {seed} torch's fused kernel")
        rounded = [x.astype(ml_dtypes.bfloat16).astype(np.float32) for x in (k, v)]
        k, v = rounded
        cast = run(NumPy, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
        native = local_bound("attn.attend", arguments, (exact,), ("bf16",), NATIVE)[0].error
        worst_fraction(cast, exact, native, f"attend {flavour} {options} seed {seed} with cells and result in bf16")
    print(f"attend {flavour} {options}: closest run at {closest:.4f} of the bound")
    assert closest * 1000 > 1


@pytest.mark.parametrize("form", ["half", "interleaved"])
@pytest.mark.parametrize(("theta", "linear", "inverse"), [(10000.0, 1.0, False), (500000.0, 4.0, True)])
def test_rope_in_f32_stays_within_its_bound_at_short_and_long_positions(form: str, theta: float, linear: float, inverse: bool) -> None:
    closest = 0.0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        head_dim, rotated = 16, 12
        positions = np.array([0, 1, 7, 100, 4095, 131071])
        q, k = draw(rng, (6, 2 * head_dim), "normal"), draw(rng, (6, head_dim), "normal")

        def run(m: Any, kind: Any) -> tuple[np.ndarray, ...]:
            given = [torch.from_numpy(x) if m is TORCH else x.astype(kind) for x in (q, k)]  # noqa: B023
            return tuple(map(np.asarray, rope(m, *given, positions, head_dim, theta, rotated, form, linear, inverse)))  # noqa: B023

        exact = run(NumPy, np.float64)
        arguments = {
            "q": q.astype(np.float64), "k": k.astype(np.float64), "positions": positions, "head_dim": head_dim, "theta": theta,
            "rotary_dim": rotated, "form": form, "part": "first", "scaling": {"kind": "linear", "factor": linear}, "sections": None,
            "inverse": inverse,
        }  # fmt: skip
        bounds = local_bound("elemwise.rope", arguments, exact, ("f32", "f32"), ORIGINAL, one_lane(6))
        for i in (0, 1):
            np.testing.assert_allclose(bounds[i].value, exact[i], rtol=0, atol=1e-9)
            assert not bounds[i].error.reshape(6, -1, head_dim)[..., rotated:].any(), "channels outside the pairs are copies"
            for name, library in LIBRARIES:
                got = run(library, np.float32)
                closest = max(closest, worst_fraction(got[i], exact[i], bounds[i].error, f"rope {form} seed {seed} {name}"))
    print(f"rope {form}: closest run at {closest:.4f} of the bound")
    assert closest * LOOSEST > 1


@pytest.mark.original
@needs_torch
@pytest.mark.parametrize("kind", ["llama3", "yarn", "linear", "default"])
def test_the_frequencies_of_transformers_are_within_their_bound(kind: str) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from conformance.bounds.rotary import _powers, _scaled

    theta, head_dim = 500000.0, 64
    given = {
        "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position": 8192},
        "yarn": {
            "factor": 4.0,
            "original_max_position": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "attention_factor": 1.0,
            "truncate": True,
        },
        "linear": {"factor": 3.0},
        "default": {},
    }[kind]
    parameters = {name.replace("_position", "_position_embeddings"): value for name, value in given.items()}
    config = LlamaConfig(
        head_dim=head_dim, hidden_size=128, num_attention_heads=2, max_position_embeddings=131072,
        rope_parameters={"rope_type": kind, "rope_theta": theta, **parameters},
    )  # fmt: skip
    if kind == "default":
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        got = LlamaRotaryEmbedding(config).inv_freq.numpy()
    else:
        got = ROPE_INIT_FUNCTIONS[kind](config, "cpu")[0].numpy()
    powers = _powers(ORIGINAL, theta, np.arange(0, head_dim, 2) / head_dim)
    scaling = None if kind == "default" else {"kind": kind, **given}
    frequencies, _ = _scaled(ORIGINAL, powers, scaling, theta, head_dim, np.zeros(1))
    fraction = worst_fraction(got, frequencies.value, np.broadcast_to(frequencies.error, got.shape), kind)
    assert fraction * LOOSEST > 1


@needs_torch
@pytest.mark.parametrize(("name", "run"), [
    ("elemwise.rmsnorm", lambda x, w: torch.nn.functional.rms_norm(x, (W,), w, 1e-5)),
    ("elemwise.layernorm", lambda x, w: torch.nn.functional.layer_norm(x, (W,), w, w, 1e-5)),
    ("elemwise.silu", lambda x, w: torch.nn.functional.silu(x)),
    ("elemwise.gelu", lambda x, w: torch.nn.functional.gelu(x)),
    ("linear.gelu_tanh", lambda x, w: torch.nn.functional.gelu(x, approximate="tanh")),
    ("elemwise.tanh", lambda x, w: torch.tanh(x)),
])  # fmt: skip
def test_the_library_functions_of_torch_stay_within_the_bounds(name: str, run: Callable[..., Any]) -> None:
    for flavour in (*FLAVOURS, "shifted"):
        for seed in SEEDS:
            arguments, formula = elementwise(name, np.random.default_rng(seed), "normal" if flavour == "shifted" else flavour)
            if flavour == "shifted":
                arguments["x"] = arguments["x"] + np.float32(300.0)
            exact = evaluated(NumPy, np.float64, formula, arguments)
            bound = local_bound(name, wide(arguments), (exact,), ("f32",), ORIGINAL)[0].error
            w = torch.from_numpy(np.resize(arguments.get("w", np.ones(W, np.float32)), W))
            got = run(torch.from_numpy(arguments["x"]), w).numpy()
            worst_fraction(got, exact, bound, f"{name} {flavour} seed {seed}")


def test_a_sum_in_the_worst_order_stays_within_the_bound() -> None:
    """One term after the other, largest first, all of one sign: rounding errors then hardly average out."""
    rng = np.random.default_rng(0)
    for terms in (64, 1000, 20000):
        x = np.sort(np.abs(rng.standard_normal(terms)).astype(np.float32))[::-1]
        total = np.float32(0.0)
        for term in x:
            total = np.float32(total + term)
        ones = np.ones((1, terms))
        exact = np.array([[x.astype(np.float64).sum()]])
        bound = local_bound("linear.matmul", {"x": x[None].astype(np.float64), "w": ones, "out": None}, (exact,), ("f32",), ORIGINAL)[
            0
        ].error
        fraction = worst_fraction(np.array([[total]]), exact, bound, f"{terms} terms in a row")
        print(f"{terms} terms in a row: {fraction:.3f} of the bound")


def test_a_bound_names_the_parameters_of_its_op() -> None:
    wrong = []
    for op, record in BOUNDS.items():
        if op not in REGISTRY:
            continue
        function: BoundFunction = record.function
        given = [name for name in inspect.signature(function).parameters if name not in ("a", "exact", "geometry")]
        if given == ["given"]:
            continue
        wanted = [parameter.name for parameter in REGISTRY[op].parameters]
        if given != wanted:
            wrong.append(f"{op}: bound takes {given}, the op {wanted}")
    assert not wrong, "\n".join(wrong)
