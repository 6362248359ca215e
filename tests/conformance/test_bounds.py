"""Bounds hold for every f32 run, on hostile operands too, and are not so loose that they would hide a fault."""

import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance.arithmetic import NATIVE, ORIGINAL
from conformance.bounds import BOUNDS, local_bound
from conformance.bounds.record import BoundFunction
from poem.ops import REGISTRY
from tests.conformance.libraries import FLAVOURS, LIBRARIES, LOOSEST, SEEDS, TORCH, NumPy, draw, needs_torch, torch, worst_fraction


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
