"""Memory between passes: scaled cells, and state slabs."""

from typing import Any

import numpy as np
import pytest

from interp import Session
from interp.kv import StateSlab
from interp.numeric import Numeric
from poem.batch import Chunk, geometry
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor
from poem.graph import Cache, ValueType
from poem.ops.operands import Weight
from poem.tracer import Tracer


def read_back(values: list[float], scale: float, kv: str, dtype: str = "bf16", **settings: Any) -> np.ndarray:
    """Values written to a row of one plane with a scale, and read by attention over that cell alone."""
    trace = Tracer("p", "m", "d")
    weight = Weight((1,), Dtype("f32"))
    param = trace.add_param(weight, "scale")
    cache = trace.add_kv(trace.add_space(kv), "kv", [len(values)], len(values), scales=(param.id,))
    pages = trace.cache_handle(cache)
    x = trace.input("x", ValueType("tokens", len(values), dtype))
    trace.call("attn.kv_append_shared", [x, pages], {}, ())
    trace.output("o", trace.call("attn.attend", [x, pages, trace.handle, len(values), 1, 0.0], {}, ()), ())
    session = Session(trace.graph(), {"scale": Tensor.of(np.array([scale], np.float32))}, **settings)
    return session.run([Chunk(session.add_sequence(), [0])], inputs={"x": np.array([values])})["o"][0]


@pytest.mark.parametrize("settings", [{}, {"setting": "fast"}, {"mode": "exact", "casts": True}], ids=str)
@pytest.mark.parametrize(("scale", "want"), [(1.0, [3.25, 256, 448, 448]), (2.0, [3.25, 256, 512, 896])])
def test_a_cell_holds_its_value_over_the_scale_of_its_plane(scale: float, want: list[float], settings: dict[str, Any]) -> None:
    np.testing.assert_array_equal(read_back([3.140625, 250, 500, 1000], scale, "e4m3", **settings), want)


@pytest.mark.parametrize("settings", [{}, {"setting": "fast"}], ids=str)
def test_a_cell_is_cast_from_the_rounded_value_not_from_the_sum_before_it(settings: dict[str, Any]) -> None:
    """1 + 2^-4 + 2^-20 is 1.0625 in bf16, a tie that goes down to 1 in e4m3; cast at once it would go up to 1.125."""
    assert read_back([1 + 2.0**-4 + 2.0**-20], 1.0, "e4m3", **settings)[0] == 1.0
    assert read_back([1 + 2.0**-4 + 2.0**-20], 1.0, "e4m3", dtype="f32", **settings)[0] == 1.125


def slab(dtype: str = "bf16", **settings: Any) -> StateSlab:
    return StateSlab(Cache(0, "s", "state", slab=(2,), dtype=dtype), Numeric(**settings))


def lanes(*commits: int) -> Any:
    """A pass of lanes with two rows each, of which these many are kept."""
    chunks = [Chunk(lane, [0, 0], commit=commit) for lane, commit in enumerate(commits)]
    return geometry(chunks, dict.fromkeys(range(len(commits)), 0), [])


def test_a_slab_starts_at_zero_and_is_rounded_when_stored() -> None:
    state, pass_ = slab(), lanes(2, 1)
    assert state.read(pass_).tolist() == [[0, 0], [0, 0]]
    state.write(pass_, np.array([[0.3, 1.0], [1.00390625, 2.0]], np.float32))
    state.settle(True)
    assert state.read(pass_).tolist() == [[0.30078125, 1.0], [1.0, 2.0]]


def test_a_second_op_of_a_pass_reads_what_the_first_wrote() -> None:
    state, pass_ = slab(), lanes(2)
    state.write(pass_, np.array([[1.0, 2.0]], np.float32))
    assert state.read(pass_).tolist() == [[1.0, 2.0]]


def test_a_failed_pass_leaves_slabs_as_they_were() -> None:
    state, pass_ = slab(), lanes(2)
    state.write(pass_, np.array([[1.0, 2.0]], np.float32))
    state.settle(True)
    state.write(pass_, np.array([[3.0, 4.0]], np.float32))
    state.settle(False)
    assert state.read(pass_).tolist() == [[1.0, 2.0]]


def test_lanes_that_commit_nothing_keep_their_slab() -> None:
    state, pass_ = slab(), lanes(0, 2)
    state.write(pass_, np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    state.settle(True)
    assert state.read(pass_).tolist() == [[0.0, 0.0], [3.0, 4.0]]


def test_a_sequence_that_leaves_takes_its_slab_along() -> None:
    state, pass_ = slab(), lanes(2)
    state.write(pass_, np.array([[1.0, 2.0]], np.float32))
    state.settle(True)
    state.remove(0)
    assert state.read(pass_).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(("settings", "want"), [({"mode": "exact"}, 0.3), ({"mode": "exact", "casts": True}, 0.30078125)], ids=str)
def test_exact_mode_rounds_slabs_only_with_casts(settings: dict[str, Any], want: float) -> None:
    state, pass_ = slab(**settings), lanes(1)
    state.write(pass_, np.array([[0.3, 0.0]]))
    assert state.read(pass_)[0, 0] == want
