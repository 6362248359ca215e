"""Bounds of ops against the interpreter: what native mode gives lies within its bound of what exact mode gives.

The exact results are the op's own in float64; that they are right is tested with the interpreter.
"""

from typing import Any

import numpy as np
import pytest

from conformance.arithmetic import NATIVE, NATIVE_AND_ORIGINAL, ORIGINAL
from conformance.bounds import BOUNDS, Cells, local_bound
from conformance.running import Running
from interp import evaluate
from interp.evaluate import Given
from interp.session import find_op
from poem.batch import Chunk, geometry
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor
from poem.ops import REGISTRY

N, W = 6, 32


def weight(array: np.ndarray, dtype: str = "f32") -> Tensor:
    return Tensor.encode(np.asarray(array, np.float32), Dtype(dtype))


class Draw:
    """Operands of one seed: values in bf16, weights in f32."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def x(self, width: int = W, rows: int = N, dtype: str = "bf16", scale: float = 1.0, axis: Any = "tokens") -> Given:
        values = self.rng.standard_normal((rows, width)).astype(np.float32) * np.float32(scale)
        stored = weight(values, "bf16").decode() if dtype == "bf16" else values
        return Given(stored, dtype, axis)

    def w(self, *shape: int) -> Tensor:
        return weight(self.rng.standard_normal(shape))

    def ids(self, high: int, width: int = 1, low: int = 0, rows: int = N, axis: Any = "tokens") -> Given:
        return Given(self.rng.integers(low, high, (rows, width)).astype(np.int32), "i32", axis)

    def perm(self) -> Given:
        order = self.rng.permutation(N).astype(np.int32)
        order[0] = -1
        return Given(order, "i32")


CASES: dict[str, Any] = {
    "elemwise.clamp_learned": lambda d: {"x": d.x(), "lo": weight(np.array([-0.5])), "hi": weight(np.array([0.75]))},
    "elemwise.gate_sigmoid_mul_heads": lambda d: {"x": d.x(), "gate": d.x(4), "head_dim": 8, "scale": 2.0},
    "elemwise.gated_residual_add": lambda d: {"r": d.x(), "g": d.x(rows=2, axis=2), "y": d.x(), "lane_of_row": d.ids(2)},
    "elemwise.modulate": lambda d: {"x": d.x(), "m": d.x(2 * W), "form": "scale_shift"},
    "elemwise.hadamard": lambda d: {"x": d.x(), "block": 16, "signs": weight(np.array([1.0, -1.0]))},
    "elemwise.rmsnorm_gated": lambda d: {
        "x": d.x(), "gate": d.x(), "w": d.w(8), "head_dim": 8, "eps": 2.0**-20, "act": "sigmoid", "gate_first": True,
    },
    "elemwise.rmsnorm_gated_by": lambda d: {"x": d.x(dtype="f32"), "gate": d.x(), "w": d.w(8), "heads": 4, "eps": 2.0**-20},
    "elemwise.silu_scaled": lambda d: {"s": 0.25, "x": d.x()},
    "elemwise.gelu": lambda d: {"x": d.x(), "tanh": False},
    "elemwise.mul_scalar": lambda d: {"s": float(np.float32(0.3)), "x": d.x()},
    "elemwise.clamp": lambda d: {"x": d.x(), "lo": -0.328125, "hi": float(np.float32(0.7))},
    "elemwise.layernorm": lambda d: {"x": d.x(), "w": d.w(W), "b": d.w(W), "eps": 2.0**-17},
    "linear.matmul": lambda d: {"x": d.x(), "w": d.w(5, W), "out": Dtype("f32")},
    "linear.glu": lambda d: {"x": d.x(), "inter": W // 2, "act": "situ", "beta": 2.0, "up_cap": 1.5},
    "linear.moe_route": lambda d: {"logits": d.x(8), "experts": 8, "top_k": 3, "score": "softmax"},
    "linear.moe_matmul_select": lambda d: {
        "x": d.x(), "bank": d.w(4, 5, W), "routes": d.ids(4, 2, low=-1), "top_k": 2, "bias": d.w(4, 5),
    },
    "linear.moe_weighted_sum": lambda d: {
        "routed": d.x(rows=2 * N, axis="tokens*2"), "weights": d.x(2, dtype="f32"), "routes": d.ids(4, 2, low=-1), "bias": d.w(4, W),
    },
    "linear.moe_bias_sum": lambda d: {"x": d.x(), "bias": d.w(4, W), "routes": d.ids(4, 2, low=-1), "weights": d.x(2, dtype="f32")},
    "linear.moe_sigmoid_gate_add": lambda d: {"routed": d.x(), "shared": d.x(), "gate": d.x(1)},
    "linear.rel_bias": lambda d: {"x": d.x(), "w": d.w(8, 3), "heads": 4, "d_rel": 8, "extent": 3},
    "linear.lora_correct": lambda d: {
        "x": d.x(), "bank_a": d.w(2, 4, W), "bank_b": d.w(2, 5, 4), "routes": d.ids(2, low=-1), "y": d.x(5),
    },
    "gather.embed": lambda d: {"ids": d.ids(7), "table": weight(d.rng.standard_normal((7, W)), "u4g32"), "vocab": 7},
    "gather.pack_rows": lambda d: {"x": d.x(), "perm": d.perm()},
    "gather.unpack_rows": lambda d: {"x": d.x(), "perm": d.perm()},
    "gather.gather_rows": lambda d: {"x": d.x(), "rows": d.ids(N)},
    "gather.split_qkv": lambda d: {"x": d.x(), "q_width": 16, "kv_width": 8},
    "gather.split_q_gate": lambda d: {"x": d.x(), "head_dim": 8},
    "gather.select": lambda d: {"x": d.x(), "index": 2, "width": 8},
    "gather.concat_cols": lambda d: {"values": [d.x(), d.x(4)]},
    "attn.logit_softcap": lambda d: {"x": d.x(scale=5.0), "cap": 3.0},
    "attn.mla_split_q": lambda d: {"q": d.x(), "heads": 2, "nope_dim": 12, "rope_dim": 4},
    "attn.mla_latents": lambda d: {"kv_a": d.x(), "norm": d.w(24), "eps": 2.0**-20, "kv_lora_rank": 24},
    "attn.mla_absorb_q": lambda d: {
        "q_nope": d.x(), "kv_b": d.w(2 * (16 + 8), 12), "heads": 2, "kv_lora_rank": 12, "nope_dim": 16, "v_head_dim": 8,
    },
    "attn.mla_absorb_out": lambda d: {
        "latent": d.x(24), "kv_b": d.w(2 * (16 + 8), 12), "heads": 2, "kv_lora_rank": 12, "nope_dim": 16, "v_head_dim": 8,
    },
    "attn.sink": lambda d: {"o": d.x(), "lse": d.x(4, dtype="f32", scale=3.0), "sinks": d.w(4), "head_dim": 8},
    "attn.merge_lse": lambda d: {
        "o1": d.x(), "lse1": d.x(4, dtype="f32", scale=3.0), "o2": d.x(), "lse2": d.x(4, dtype="f32", scale=3.0), "heads": 4, "head_dim": 8,
    },
}  # fmt: skip
COPIES = {op for op in CASES if BOUNDS[op].copies}


def operands(op: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments as bounds take them: float64 values, decoded weights, defaults filled in."""

    def plain(item: Any) -> Any:
        if isinstance(item, list):
            return [plain(part) for part in item]
        if isinstance(item, Tensor):
            return item.decode()
        if isinstance(item, Given):
            array = np.asarray(item.rows)
            return (
                array
                if array.dtype.kind == "i" and array.shape[1:] != (1,)
                else array.reshape(-1)
                if array.dtype.kind == "i"
                else wide(array)
            )
        return item

    return {parameter.name: plain(given.get(parameter.name, parameter.default)) for parameter in REGISTRY[op].parameters}


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


@pytest.mark.parametrize("op", [op for op in CASES if find_op(op) is not None])
def test_native_results_lie_within_the_bound_of_exact_results_and_use_some_of_it(op: str) -> None:
    closest = 0.0
    for seed in range(3):
        given = CASES[op](Draw(seed))
        exact, native = (evaluate(op, mode=mode, **given) for mode in ("exact", "native"))
        exact, native = (found if isinstance(found, tuple) else (found,) for found in (exact, native))
        dtypes = ["i32" if result.dtype.kind == "i" else "f32" for result in exact]
        floats = [item.dtype for item in given.values() if isinstance(item, Given) and item.dtype in ("bf16", "f32")]
        results = ["f32" if op in ("linear.moe_route", "linear.rel_bias") or given.get("out") else (floats or ["bf16"])[0]] * len(exact)
        if op in ("elemwise.rmsnorm_gated_by", "gather.embed"):
            results = ["bf16"]
        if op == "attn.merge_lse":
            results = ["bf16", "f32"]
        bounds = local_bound(op, operands(op, given), exact, results, NATIVE)
        for got, want, bound, dtype in zip(native, exact, bounds, dtypes, strict=True):
            if dtype == "i32":
                np.testing.assert_array_equal(got, want)
                continue
            np.testing.assert_allclose(
                bound.value, want, rtol=1e-11, atol=1e-13, err_msg=f"{op}: the bound has another formula than the op"
            )
            error = np.abs(wide(got) - want)
            error[got == want] = 0.0
            over = error > np.broadcast_to(bound.error, want.shape)
            assert not over.any(), f"{op} seed {seed}: {error[over][0]} > {np.broadcast_to(bound.error, want.shape)[over][0]}"
            inside = error > 0
            closest = max(closest, float((error[inside] / np.broadcast_to(bound.error, want.shape)[inside]).max(initial=0.0)))
    print(f"{op}: closest at {closest:.3f} of the bound")
    assert op in COPIES or op == "elemwise.clamp_learned" or closest > 0.003, f"{op}: no run comes within {closest} of the bound"
    assert op not in COPIES or closest == 0.0


def test_errors_of_operands_are_carried_through_several_ops() -> None:
    """A product, a norm and an activation in f32, compared with float64 at the end only."""
    rng = np.random.default_rng(0)
    x, w, gain = rng.standard_normal((40, 64)), rng.standard_normal((48, 64)), rng.standard_normal(48)
    x, w, gain = (array.astype(np.float32) for array in (x, w, gain))

    def run(kind: Any) -> list[np.ndarray]:
        y = x.astype(kind) @ w.astype(kind).T
        n = y / np.sqrt(np.mean(y * y, -1, keepdims=True, dtype=kind) + kind(1e-5)) * gain.astype(kind)
        return [y, n, n / (1 + np.exp(-n))]

    exact, single = run(np.float64), run(np.float32)
    (product,) = local_bound("linear.matmul", {"x": wide(x), "w": w, "out": None}, exact[:1], ["f32"], ORIGINAL)
    (normed,) = local_bound("elemwise.rmsnorm", {"x": product, "w": gain, "eps": 1e-5}, exact[1:2], ["f32"], ORIGINAL)
    (opened,) = local_bound("elemwise.silu", {"x": normed}, exact[2:], ["f32"], ORIGINAL)
    errors = [np.abs(wide(got) - want) for got, want in zip(single, exact, strict=True)]
    for error, bound in zip(errors, (product, normed, opened), strict=True):
        assert (error <= bound.error).all()
    alone = local_bound("elemwise.silu", {"x": exact[1]}, exact[2:], ["f32"], ORIGINAL)[0].error
    assert (errors[2] > alone).any(), "the errors of operands matter here"


@pytest.mark.parametrize(("dtype", "worst"), [("bf16", 2.0**-8), ("f16", 2.0**-11), ("e4m3", 2.0**-4), ("e5m2", 2.0**-3)])
def test_cells_are_read_within_the_rounding_of_their_dtype(dtype: str, worst: float) -> None:
    cells = np.linspace(-3, 3, 999)[:, None]
    read = Cells([(cells,)], dtype).read(0, 0, NATIVE)
    stored = weight(cells, dtype).decode()
    error = np.abs(stored - cells.astype(np.float32))
    assert (error <= np.broadcast_to(read.error, cells.shape)).all()
    assert (np.broadcast_to(read.error, cells.shape) <= worst * np.maximum(np.abs(cells), 2.0**-6)).all()
    assert not Cells([(cells,)], dtype).read(0, 0, ORIGINAL).inexact, "an f32 original keeps its cells as they are"


def test_attention_over_rounded_cells_is_within_the_bound_that_counts_their_rounding() -> None:
    from poem.graph import ValueType
    from poem.tracer import Tracer

    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((5, width)).astype(np.float32) for width in (32, 16, 16))
    tracer = Tracer("t", "t", "t")
    cache = tracer.cache_handle(tracer.add_kv(tracer.add_space("e4m3"), "kv", [16, 16], 8))
    values = [tracer.input(name, ValueType("tokens", width, "f32")) for name, width in (("q", 32), ("k", 16), ("v", 16))]
    tracer.call("attn.kv_append", [values[1], values[2], cache], {}, ())
    tracer.output("o", tracer.call("attn.attend", [values[0], cache, tracer.handle, 8, 2, 0.35], {}, ()), ())
    from interp import Session

    found = {}
    for mode in ("exact", "native"):
        session = Session(tracer.graph(), {}, mode=mode)  # type: ignore[arg-type]
        found[mode] = session.run([Chunk(session.add_sequence(), [0] * 5)], inputs={"q": q, "k": k, "v": v})["o"]
    node = tracer.graph().nodes[-1]
    arguments: dict[str, Any] = {**node.attributes, "mask": None, "sinks": None, "bias": None, "selection": None}
    arguments |= {"q": wide(q), "cache": Cells([(wide(k), wide(v))], "e4m3"), "inputs": geometry([Chunk(0, [0] * 5)], {0: 0}, [])}
    error = np.abs(wide(found["native"]) - found["exact"])
    bound = local_bound("attn.attend", arguments, (found["exact"],), ["f32"], NATIVE)[0].error
    without = local_bound("attn.attend", arguments, (found["exact"],), ["f32"], NATIVE.only("steps"))[0].error
    assert (error <= bound).all()
    assert (error > without).any()
    assert (bound < 30 * error.max()).any(), "the bound is not vacuous"


def test_native_against_an_original_allows_both_their_errors() -> None:
    x = np.random.default_rng(0).standard_normal((4, 8))
    alone = [
        np.broadcast_to(local_bound("elemwise.silu", {"x": x}, (x,), ["bf16"], arithmetic)[0].error, x.shape)
        for arithmetic in (NATIVE, ORIGINAL, NATIVE_AND_ORIGINAL)
    ]
    np.testing.assert_allclose(alone[2], alone[0] + alone[1], rtol=1e-3)


def test_a_source_of_errors_can_be_asked_for_by_itself() -> None:
    x, w = np.ones((2, 64)), np.ones((3, 64), np.float32)
    parts = {
        source: float(
            np.max(local_bound("linear.matmul", {"x": x, "w": w, "out": None}, (x @ w.T,), ["bf16"], NATIVE.only(source))[0].error)
        )
        for source in ("steps", "functions", "results")
    }
    assert parts["functions"] == 0.0
    assert parts["results"] == 0.25, "half a spacing of bf16 at 64"
    assert 0 < parts["steps"] < 0.01 * parts["results"]


def test_running_values_stay_arrays_and_carry_their_arithmetic() -> None:
    made = np.ones(3) * Running(ORIGINAL, np.arange(3.0)) - 1.0
    assert isinstance(made, Running)
    np.testing.assert_array_equal(made.value, [-1.0, 0.0, 1.0])
    assert made.arithmetic is ORIGINAL
