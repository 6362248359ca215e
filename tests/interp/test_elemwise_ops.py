"""ops.elemwise: hand-computed values, special values, and the rounding of native mode."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from interp import Session, evaluate
from interp.evaluate import Given
from interp.ops.mixing import relative_bucket
from poem.batch import Chunk
from poem.dtypes import Dtype
from poem.errors import PoemError
from poem.ops import REGISTRY
from poem.ops.operands import Weight
from poem.tracer import Tracer
from tests.interp.cases import given, tensor
from tests.interp.elemwise_cases import CASES


def test_every_op_of_the_namespace_has_a_case() -> None:
    elsewhere = {"elemwise.rope", "elemwise.relative_bucket_bias"}  # test_rope.py; below
    assert {name for name in REGISTRY if name.startswith("elemwise.")} - elsewhere == {case.op for case in CASES}


# -- hand-computed values -------------------------------------------------------------------------------------------------
def exact(op: str, *arguments: Any, **named: Any) -> Any:
    return evaluate(f"elemwise.{op}", *arguments, mode="exact", **named)


def agrees(got: np.ndarray, want: Any) -> None:
    np.testing.assert_allclose(got, np.array(want, float), rtol=0, atol=1e-6)


X = given([[-2, -0.5, 0, 1]])
V = given([[1, 2, -2, 4]])
W = tensor([1, 0.5, 2, 1])


def test_activations_at_known_points() -> None:
    agrees(exact("silu", X), [[-0.238406, -0.18877, 0, 0.731059]])
    agrees(exact("gelu", X, tanh=True), [[-0.045402, -0.154286, 0, 0.841192]])
    agrees(exact("gelu", X), [[-0.0455, -0.154269, 0, 0.841345]])


def test_the_norms_at_known_points() -> None:
    agrees(exact("rmsnorm", V, W, 1e-6), [[0.4, 0.4, -1.6, 1.6]])
    agrees(exact("rmsnorm_plus_one", V, W, 1e-6), [[0.8, 1.2, -2.4, 3.2]])
    agrees(exact("rmsnorm_per_head", V, tensor([1, 0.5]), 2, 1e-6), [[0.632455, 0.632455, -0.632456, 0.632456]])
    agrees(exact("rmsnorm_no_scale", V, 2, 1e-6), [[0.632455, 1.264911, -0.632456, 1.264911]])
    gate, w = given([[0, 1, -1, 2]]), tensor([1, 0.5])
    agrees(exact("rmsnorm_gated", V, gate, w, 2, 1e-6), [[0, 0.462362, 0.170093, 1.11413]])
    agrees(exact("rmsnorm_gated", V, gate, w, 2, 1e-6, act="sigmoid"), [[0.316228, 0.462362, -0.170093, 0.557065]])
    agrees(exact("rmsnorm_gated", V, gate, w, 2, 1e-6, gate_first=True), [[0, 0.707106, 0.10764, 0.705056]])
    agrees(exact("layernorm", V), [[-0.11547, 0.34641, -1.501109, 1.270169]])
    agrees(exact("layernorm", V, W, tensor([0, 1, 0, -1])), [[-0.11547, 1.173205, -3.002218, 0.270169]])


def test_shifts_scales_and_gates_at_known_points() -> None:
    x, lanes = given([[1, 2], [3, 4]]), given([0, 0], "i32")
    agrees(exact("standardize", x, tensor([1, 1]), tensor([2, 0.5])), [[0, 0.5], [4, 1.5]])
    table = Given([[0.5, -1, 10, 20]], "f32", "lanes")
    agrees(exact("modulate", x, table, lanes), [[11.5, 20], [14.5, 20]])
    gate = Given([[0.5, -1]], "f32", "lanes")
    agrees(exact("modulate", x, gate, lanes, form="tanh_gate"), [[0.462117, -1.523188], [1.386351, -3.046377]])
    agrees(exact("gated_residual_add", x, gate, given([[2, 2], [4, 4]]), lanes), [[2, 0], [5, 0]])


@pytest.mark.parametrize(
    ("form", "head_dim", "dims", "want"),
    [
        ("interleaved", 8, [4, 4], [-1.14264, 1.922076, 2.585679, 4.279517, 1.51136, 7.662623, 6.591418, 8.339856]),
        ("split", 8, [4, 4], [-1.984111, 1.590675, 2.462378, 4.179683, 1.031934, 5.592668, 8.540206, 8.289877]),
        ("neox", 8, [4, 4], [-3.667053, 1.391008, -0.723231, 3.595168, 3.542983, 6.169692, 7.581355, 8.189919]),
        ("split_ladder", 4, [2, 2], [1, 2, 3, 4, -3.188785, 1.430091, 7.989471, 9.897214]),
    ],
)
def test_rope_axes_at_known_points(form: str, head_dim: int, dims: list[int], want: list[float]) -> None:
    x, positions = given([[1, 2, 3, 4, 5, 6, 7, 8]]), given([[1, 0.5]])
    agrees(exact("rope_axes", x, positions, dims, [100, 100], form, head_dim, head_dim), [want])


def test_a_slot_that_the_ladder_copies_stays_what_it_is_even_beside_infinity() -> None:
    x = given([[1, 2, np.inf, 4, 5, 6, 7, 8]])
    assert exact("rope_axes", x, given([[1, 0.5]]), [2, 2], [100, 100], "split_ladder", 4, 4)[0, :3].tolist() == [1, 2, np.inf]


def test_sinusoids_at_known_points() -> None:
    agrees(exact("sinusoid", given([[2]]), 4), [[-0.416147, 0.9998, 0.909297, 0.019999]])
    agrees(exact("sinusoid", given([[2]]), 4, flip_sin_cos=False, scale=10), [[0.912945, 0.198669, 0.408082, 0.980067]])


def test_hadamard_at_known_points() -> None:
    x = given([[1, 2, 3, 4]])
    agrees(exact("hadamard", x, 4), [[5, -1, -2, 0]])
    agrees(exact("hadamard", x, 4, tensor([1, -1])), [[-1, 5, 0, -2]])


def test_hyper_connections_at_known_points() -> None:
    streams = given([[1, 2, 3, 4]])
    mixes = given([[0.5, -0.5, 1, 0, 1, 0, 0, 1]])
    x, post, comb = exact("hc_gates", mixes, streams, tensor([1, 1, 1]), tensor([0] * 8), 2, 1e-6, 2, 2)
    agrees(x, [[1.755085, 2.755087]])
    agrees(post, [[1.462117, 1]])
    agrees(comb, [[0.731057, 0.268942, 0.268942, 0.731057]])
    agrees(exact("hc_fold", given([[1, -1]]), streams, given(post), given(comb)), [[2.999999, 1.075764, 3.462114, 2.462113]])


def test_res_blend_at_known_points() -> None:
    arguments = (given([[1, 0]]), [given([[0, 2]])], tensor([1, 1]), 0, tensor([1, 0]))
    agrees(exact("res_blend", *arguments), [[0.80443, 0.391141]])
    agrees(exact("res_blend", *arguments, scale=0.5, values="normed"), [[0.947186, 0.467028]])


DISTANCES = [-20, -5, -2, -1, 0, 1, 2, 5, 20]


@pytest.mark.parametrize(("bidirectional", "want"), [(True, [3, 2, 2, 1, 0, 5, 6, 6, 7]), (False, [7, 4, 2, 1, 0, 0, 0, 0, 0])])
def test_buckets_of_distances_at_known_points(bidirectional: bool, want: list[int]) -> None:
    assert [relative_bucket(distance, 8, 16, bidirectional) for distance in DISTANCES] == want


def test_the_table_of_relative_biases_holds_the_bucket_of_each_distance() -> None:
    trace = Tracer("p", "m", "d")
    embedding = Weight((8, 2), Dtype("f32"))
    trace.add_param(embedding, "embedding")
    trace.output("table", trace.call("elemwise.relative_bucket_bias", [trace.handle, embedding, 3, 8, 16, True], {}, ()), ())
    session = Session(trace.graph(), {"embedding": tensor(np.arange(16).reshape(8, 2))}, mode="exact")
    table = session.run([Chunk(session.add_sequence(), [0])])["table"]
    buckets = [2, 1, 0, 5, 6]  # of the distances -2 .. 2
    assert table.tolist() == [[2 * bucket + head for bucket in buckets] for head in (0, 1)]


# -- special values ---------------------------------------------------------------------------------------------------------
def test_clamps_replace_nan_by_the_lower_bound() -> None:
    x = given([[np.nan, -5, 0.5, 5]])
    agrees(exact("clamp", x, -1, 1), [[-1, -1, 0.5, 1]])
    agrees(exact("clamp_learned", x, tensor([-1]), tensor([1])), [[-1, -1, 0.5, 1]])
    agrees(exact("clamp", given([[np.inf, -np.inf]]), -1, 1), [[1, -1]])


def test_rectifiers_keep_nan() -> None:
    for op in ("relu", "relu2"):
        got = exact(op, given([[np.nan, -1, np.inf]]))
        assert np.isnan(got[0, 0])
        assert got[0, 1:].tolist() == [0, np.inf]


@pytest.mark.parametrize("op", ["silu", "gelu", "tanh"])
def test_nan_stays_in_its_element(op: str) -> None:
    assert np.isnan(exact(op, given([[np.nan, 1, 2, 3]]))).tolist() == [[True, False, False, False]]


@pytest.mark.parametrize(("op", "more"), [("rmsnorm_no_scale", (4, 1e-6)), ("layernorm", ()), ("hadamard", (4,))])
def test_nan_spoils_its_row_and_no_other(op: str, more: tuple[Any, ...]) -> None:
    assert np.isnan(exact(op, given([[np.nan, 1, 2, 3], [0, 1, 2, 3]]), *more)).tolist() == [[True] * 4, [False] * 4]


def test_a_row_of_zeros_is_normed_to_zeros_and_with_eps_0_to_nan() -> None:
    zeros = given([[0, 0, 0, 0]])
    agrees(exact("rmsnorm", zeros, W, 1e-6), [[0] * 4])
    agrees(exact("rmsnorm_no_scale", zeros, 2, 1e-6), [[0] * 4])
    assert np.isnan(exact("rmsnorm_no_scale", zeros, 2, 0.0)).all()


def test_a_lane_that_does_not_exist_is_named_with_its_row() -> None:
    with pytest.raises(PoemError, match="lane_of_row is 1, but m has 1 rows") as caught:
        exact("modulate", given([[1.0], [2]]), Given([[1.0, 2]], "f32", "lanes"), given([0, 1], "i32"))
    assert "ops.elemwise.modulate: row 1" in str(caught.value)


# -- native rounding --------------------------------------------------------------------------------------------------------
def test_values_round_to_bf16_to_nearest_even() -> None:
    got = evaluate("elemwise.cast", given([[1.00390625, 1.01171875, 0.3]]), Dtype("bf16"))
    assert got.tolist() == [[1.0, 1.015625, 0.30078125]]


def test_mul_scalar_rounds_its_number_to_the_dtype_of_x_first() -> None:
    assert evaluate("elemwise.mul_scalar", 73.321211, given([[5]], "bf16")).tolist() == [[368.0]]
    agrees(exact("mul_scalar", 73.321211, given([[5]], "bf16")), [[5 * float(np.float32(73.321211))]])


def test_clamp_rounds_its_bounds_to_the_dtype_of_x() -> None:
    assert evaluate("elemwise.clamp", given([[-5, 5]], "bf16"), -0.3, 0.3).tolist() == [[-0.30078125, 0.30078125]]
    agrees(exact("clamp", given([[-5, 5]], "bf16"), -0.3, 0.3), [[-float(np.float32(0.3)), float(np.float32(0.3))]])


def test_rmsnorm_of_bf16_rounds_after_the_gain() -> None:
    w = tensor([1, 0.5, 2, 1], ml_dtypes.bfloat16)
    got = evaluate("elemwise.rmsnorm", given([[1, 2, -2, 4]], "bf16"), w, 1e-6)
    assert got.tolist() == [[0.400390625, 0.400390625, -1.6015625, 1.6015625]]
