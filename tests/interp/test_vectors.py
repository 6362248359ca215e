"""Hand-computed results of the core ops in exact mode, to six decimals."""

from typing import Any

import numpy as np
import pytest

from interp import evaluate
from interp.evaluate import Given
from interp.ops.rope import frequencies, scaling_key
from poem.dtypes.tensor import Tensor
from poem.ops import scaling
from tests.interp.attending import Attention, chunk


def weight(values: Any) -> Tensor:
    return Tensor.of(np.array(values, np.float32))


def agrees(got: np.ndarray, want: Any, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(got, np.array(want, float), rtol=0, atol=tolerance)


def exact(op: str, *arguments: Any, **named: Any) -> Any:
    return evaluate(op, *arguments, mode="exact", **named)


@pytest.mark.parametrize("op", ["matmul", "lm_head"])
def test_products_with_a_weight_contract_the_last_axis(op: str) -> None:
    agrees(exact(f"linear.{op}", Given([[1, 2], [3, -1]]), weight([[0.5, 1], [2, -1], [0, 4]])), [[2.5, 0, 8], [0.5, 7, -4]])


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, [[0.365529, -0.715218]]),
        ({"act": "gelu_tanh"}, [[0.420596, -0.136207]]),
        ({"act": "gelu"}, [[0.420672, -0.136501]]),
        ({"limit": 0.75}, [[0.254692, -0.178804]]),
        ({"limit": 2, "alpha": 1.702}, [[1.268694, -0.193024]]),
        ({"act": "situ", "beta": 2, "up_cap": 1}, [[0.312238, -0.180671]]),
    ],
)
def test_gated_units_take_the_gate_first(options: dict[str, Any], want: Any) -> None:
    agrees(exact("linear.glu", Given([[1, -2, 0.5, 3]]), 2, **options), want)
    agrees(exact("linear.glu", Given([[1, -2]]), 2, up=Given([[0.5, 3]]), **options), want)


def test_a_limited_gated_unit_replaces_nan_by_its_bounds() -> None:
    agrees(exact("linear.glu", Given([[np.nan, 3, 2, np.nan]]), 2, limit=1), [[0.731059, -0.731059]])
    assert np.isnan(exact("linear.glu", Given([[np.nan, 3, 2, np.nan]]), 2)).all()


def test_rmsnorm_divides_rows_by_their_root_mean_square() -> None:
    agrees(exact("elemwise.rmsnorm", Given([[1, 2, -2, 4]]), weight([1, 0.5, 2, 1]), 1e-6), [[0.4, 0.4, -1.6, 1.6]])
    agrees(exact("elemwise.rmsnorm", Given([[0, 0]]), weight([1, 1]), 1e-6), [[0, 0]])
    assert np.isnan(exact("elemwise.rmsnorm", Given([[0, 0]]), weight([1, 1]), 0.0)).all()


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, [[-1.984111, 1.590675, 2.462378, 4.179683]]),
        ({"form": "interleaved"}, [[-1.14264, 1.922076, 2.585679, 4.279517]]),
        ({"rotary_dim": 2}, [[-1.14264, 1.922076, 3, 4]]),
        ({"rotary_dim": 2, "part": "last"}, [[1, 2, -1.744977, 4.685622]]),
        ({"form": "proportional", "rotary_dim": 2}, [[-1.984111, 2, 2.462378, 4]]),
        ({"inverse": True}, [[3.064715, 2.389342, 0.779436, 3.78035]]),
    ],
)
def test_rope_turns_pairs_of_channels(options: dict[str, Any], want: Any) -> None:
    positions = Given([1], "i32")
    agrees(exact("elemwise.rope", Given([[1, 2, 3, 4]]), None, positions, 4, 100, **options), want)
    q, k = exact("elemwise.rope", Given([[1, 2, 3, 4] * 2]), Given([[1, 2, 3, 4]]), positions, 4, 100, **options)
    agrees(q, np.tile(want, 2))
    agrees(k, want)


@pytest.mark.parametrize(
    ("form", "sections", "want"),
    [
        ("mrope_interleaved", [2, 1, 1], [-1.695593, 0.034929, 1.549514, 3.224205, -4.808842, 6.324459, 7.456474, 8.342931]),
        ("mrope_chunked", [2, 1, 1], [-1.695593, -3.710386, 2.286179, 3.486375, -4.808842, 5.121819, 7.264529, 8.236819]),
        ("mrope_blocked", [0, 2, 2], [-3.667053, 1.391008, -7.613522, 2.330912, 3.542983, 6.169692, -0.185136, 8.63521]),
        ("mrope_split", [0, 2, 2], [-1.984111, 1.590675, 2.462378, 4.179683, -8.445816, 4.291045, 1.633459, 9.032549]),
    ],
)
def test_rope_turns_sections_by_their_own_positions(form: str, sections: list[int], want: list[float]) -> None:
    q, positions = Given([[1, 2, 3, 4, 5, 6, 7, 8]]), Given([[3, 1, 2]], "i32")
    agrees(exact("elemwise.rope", q, None, positions, 8, 100, form=form, sections=sections), [want])


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (None, [1, 0.1, 0.01, 0.001]),
        (scaling.linear(4), [0.25, 0.025, 0.0025, 0.00025]),
        (scaling.llama3(8, 1, 4, 64), [1, 0.013042256, 0.00125, 0.000125]),
        (scaling.yarn(factor=4, original_max_position=64, beta_fast=8, beta_slow=1), [1, 0.0625, 0.0025, 0.00025]),
        (
            scaling.yarn(factor=4, original_max_position=64, beta_fast=8, beta_slow=1, truncate=False),
            [1, 0.0256643944, 0.0025, 0.00025],
        ),
        (scaling.longrope([1, 1.5, 2, 4], [1, 1, 1, 1], 64, 1.0), [1, 0.0666666667, 0.005, 0.00025]),
    ],
    ids=["plain", "linear", "llama3", "yarn", "yarn-untruncated", "longrope"],
)
def test_scalings_change_frequencies(value: Any, want: list[float]) -> None:
    key = None if value is None else scaling_key(value.as_attribute())
    np.testing.assert_allclose(frequencies(10000.0, 8, 8, "half", key, None), want, rtol=1e-8)


K = np.array([[0, 1], [1, 1], [1, 0]], float)
V = np.array([[2, 0], [0, 4], [0, 5]], float)
Q = np.array([[1, 0], [1, 2], [2, 1]], float)
LAST = [[1.887703, 3.112297]]


@pytest.mark.parametrize(
    ("attention", "given", "o", "lse"),
    [
        ({}, {}, [[1.377541, 0.622459], [0.800715, 2.212245], *LAST], [[1.405296], [3.145464], [2.126644]]),
        ({"options": {"window": 1}}, {}, [[2, 0], [0, 4], [0, 5]], [[0], [2.164043], [1.442695]]),
        (
            {"options": {"causal": False}}, {},
            [[0.849045, 1.918259], [0.800715, 2.212245], *LAST], [[2.103478], [3.145464], [2.126644]],
        ),
        (
            {"options": {"softcap": 0.5}}, {},
            [[1.405935, 0.594065], [0.994645, 1.701145], [2.373587, 2.626413]], [[1.300681], [2.241057], [1.624233]],
        ),
        ({"sinks": [0.5]}, {}, [[0.849045, 0.383652], [0.674955, 1.864791], [1.370343, 2.259314]], None),
        (
            {"bias": 2}, {"bias": [[1, 0], [0, -1], [2, 3]]},
            [[1.622459, 0.377541], [0.511713, 2.745351], [3.112297, 1.887703]], None,
        ),
        (
            {"bias": 2, "options": {"log_scaling": [2, 0.5]}}, {"bias": [[1, 0], [0, -1], [2, 3]]},
            [[1.622459, 0.377541], [0.429775, 2.935418], [3.112297, 1.887703]], None,
        ),
        (
            {"selection": 1, "options": {"ratio": 2}}, {"selection": [[0], [0], [-1]]},
            [[1.377541, 0.622459], [0.800715, 2.212245], [0, 0]], None,
        ),
    ],
    ids=["plain", "window", "causal=False", "softcap", "sinks", "bias", "bias-log_scaling", "selection"],
)  # fmt: skip
def test_attention_over_two_lanes_of_a_paged_cache(attention: dict[str, Any], given: dict[str, Any], o: Any, lse: Any) -> None:
    attention = {**attention, "options": {**attention.get("options", {}), "lse": lse is not None}}
    session = Attention(1, 1, 2, 2, 0.5, **attention).session(mode="exact", page_size=2)
    first, second = session.add_sequence(), session.add_sequence()
    zeros = np.zeros((2, 2))
    before = {"q": zeros, "k": [[1, 0], [0, 1]], "v": [[1, 1], [5, 0]]}
    before |= {name: np.zeros((2, np.shape(value)[1]), np.asarray(value).dtype) for name, value in given.items()}
    session.run([chunk(first, 1), chunk(second, 1)], inputs=before)
    outputs = session.run([chunk(first, 2), chunk(second, 1)], inputs={"q": Q, "k": K, "v": V, **given})
    agrees(outputs["o"], o)
    if lse is not None:
        agrees(outputs["lse"], lse)


DENSE = (
    Given([[1, 0], [0, 1], [1, 1]]), Given([[1, 0], [0, 1], [1, 1]]), Given([[1], [2], [4]]),
    Given([0, 2, 3], "i32", "lanes+1"), Given([0, 2, 3], "i32", "lanes+1"), 2, 1, 1.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, [[1.268941], [1.731059], [4]]),
        ({"causal": True}, [[1], [1.731059], [4]]),
        ({"bias": Given([[3, 0, -3]], "f32", 1)}, [[1.017986], [1.119203], [4]]),
        ({"tags": [Given([0, -1, 1], "i32"), Given([0, 1, 1], "i32")]}, [[1], [1.731059], [4]]),
    ],
    ids=["plain", "causal", "bias", "tags"],
)
def test_dense_attention_stays_inside_segments(options: dict[str, Any], want: Any) -> None:
    agrees(exact("attn.dense", *DENSE, **options), want)


def test_attention_over_two_key_sets_merges_by_lse() -> None:
    o1, lse1, o2 = Given([[1, 0]]), Given([[1]]), Given([[0, 2]])
    o, lse = exact("attn.merge_lse", o1, lse1, o2, Given([[-1]]), 1, 2)
    agrees(o, [[0.8, 0.4]])
    agrees(lse, [[1.321928]])
    o, lse = exact("attn.merge_lse", o1, lse1, o2, Given([[-np.inf]]), 1, 2)
    agrees(o, [[1, 0]])
    agrees(lse, [[1]])
    o, lse = exact("attn.merge_lse", o1, Given([[-np.inf]]), o2, Given([[-1]]), 1, 2)
    agrees(o, [[0, 2]])
    agrees(lse, [[-1]])


def test_a_sink_takes_its_share_after_merging() -> None:
    agrees(exact("attn.sink", Given([[1, 0]]), Given([[1]]), weight([0.5]), 2), [[0.548137, 0]])
    agrees(exact("attn.sink", Given([[1, 0]]), Given([[-np.inf]]), weight([0.5]), 2), [[1, 0]])


def test_logits_are_capped_softly() -> None:
    agrees(exact("attn.logit_softcap", Given([[0, 15, -60]]), 30), [[0, 13.863515, -28.920827]])
