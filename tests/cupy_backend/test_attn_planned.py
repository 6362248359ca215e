"""Attention as the planner launches it: options, scales of caches, masks of ragged batches, norms of heads. Judged by the interpreter."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from conformance.isolated import Pass, run_isolated
from cupy_backend.emulator import EmulatedDevice, Schedule
from cupy_backend.errors import KernelError
from cupy_backend.plan import Bucket, Options, plan
from cupy_backend.plan.patterns import grouped
from cupy_backend.session import Session
from poem.batch import Chunk
from poem.dtypes import Dtype
from poem.dtypes.leaves import STORAGE
from poem.dtypes.tensor import Tensor
from poem.graph import Graph, ValueType
from poem.ops.operands import Value, Weight
from poem.ops.scaling import Scaling, longrope
from tests.cupy_backend.graphs import Made

LANES = ((0, 20), (1, 3), (2, 0), (3, 1))  # the first pass: (sequence, new rows)
DECODING = ((1, 1), (0, 1), (3, 2), (2, 5))


@dataclass
class Layer:
    """Attention of some heads over one cache row, and what is given to it beside a pass."""

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    kv: str = "bf16"
    made: Made = field(default_factory=Made)
    types: dict[str, tuple[int, str]] = field(default_factory=dict)

    def given(self, name: str, width: int, dtype: str = "bf16") -> Value:
        self.types[name] = width, dtype
        return self.made.trace.input(name, ValueType("tokens", width, dtype))

    def cache(self, planes: int = 2, scales: Sequence[float] = ()) -> Any:
        trace, width = self.made.trace, self.kv_heads * self.head_dim
        ids = []
        for number, scale in enumerate(scales):
            ids.append(trace.add_param(Weight((1,), Dtype("f32")), f"scale{number}").id)
            self.made.weights[f"scale{number}"] = Tensor.of(np.array([scale], np.float32))
        return trace.cache_handle(trace.add_kv(trace.add_space(self.kv), "kv", [width] * planes, self.head_dim, scales=tuple(ids) or None))

    def attend(self, cache: Any, **options: Any) -> Any:
        q = self.given("q", self.heads * self.head_dim)
        return self.made.call("attn.attend", q, cache, self.made.trace.handle, self.head_dim, self.kv_heads, 0.2, **options)

    def append(self, cache: Any) -> None:
        k, v = (self.given(name, self.kv_heads * self.head_dim) for name in "kv")
        self.made.call("attn.kv_append", k, v, cache)

    def passes(self, masks: bool = False, seed: int = 0) -> list[Pass]:
        """A prompt of several lanes, then chunks and single tokens. masks: of every second lane."""
        random, lengths, found = np.random.default_rng(seed), {}, []
        for lanes in (LANES, DECODING):
            chunks, rows = [], sum(new for _, new in lanes)
            for number, (sequence, new) in enumerate(lanes):
                lengths[sequence] = lengths.get(sequence, 0) + new
                mask = random.random((new, lengths[sequence])) < 0.5 if masks and number % 2 == 0 else None
                chunks.append(Chunk(sequence, [0] * new, mask=mask))
            inputs = {
                name: random.standard_normal((rows, width)).astype(STORAGE[dtype]).astype(np.float32)
                for name, (width, dtype) in self.types.items()
            }
            found.append(Pass(tuple(chunks), inputs))
        return found


def judged(graph: Graph, weights: dict[str, Tensor], passes: Sequence[Pass], **options: Any) -> Session:
    """Runs the passes on the emulator; every result lies within its bound, every cell has the right bits."""
    made = Session(graph, weights, EmulatedDevice(schedule=Schedule("random", "random", 3)), page_size=4, options=Options(**options))
    found = run_isolated(graph, weights, made, passes)
    wrong = [f"{item.what}, {item.distance}" for item in found if not item.distance.agrees]
    assert found
    assert not wrong
    return made


def ops_of(session: Session) -> list[str]:
    return [step.pattern for step in session.plan.steps]


@pytest.mark.parametrize("causal", [True, False])
def test_masks_of_some_lanes_decide_what_rows_see(causal):
    layer = Layer()
    cache = layer.cache()
    layer.append(cache)
    o = layer.attend(cache, mask=layer.made.trace.input("mask", None, kind="mask"), causal=causal, window=9)
    judged(*layer.made.graph("o", o), layer.passes(masks=True))


@pytest.mark.parametrize("invariant", [False, True])
def test_cells_of_8_bits_are_divided_and_multiplied_by_the_scales_of_their_row(invariant):
    layer = Layer(kv="e4m3")
    cache = layer.cache(scales=(0.037, 1.9))
    layer.append(cache)
    o = layer.attend(cache)
    judged(*layer.made.graph("o", o), layer.passes(), batch_invariant=invariant)


def test_biases_log_scaling_caps_and_sinks_of_rows_come_together():
    layer = Layer()
    cache = layer.cache()
    layer.append(cache)
    options = {"bias": layer.given("bias", layer.heads * 5, "f32"), "sinks": layer.given("sinks", layer.heads), "softcap": 3.0}
    o = layer.attend(cache, log_scaling=[4.0, 0.25], **options)
    judged(*layer.made.graph("o", o), layer.passes())


def test_one_plane_serves_as_keys_and_values():
    layer = Layer(kv="e4m3")
    cache = layer.cache(planes=1, scales=(0.7,))
    layer.made.call("attn.kv_append_shared", layer.given("kv", layer.kv_heads * layer.head_dim), cache)
    o = layer.attend(cache)
    judged(*layer.made.graph("o", o), layer.passes())


def test_a_planned_prefill_is_attention_without_options():
    layer = Layer()
    cache, made = layer.cache(), layer.made
    layer.append(cache)
    planned = made.call("attn.plan_prefill", made.trace.handle, layer.heads, layer.kv_heads, layer.head_dim, window=6)
    q = layer.given("q", layer.heads * layer.head_dim)
    o = made.call("attn.prefill", q, planned, cache, 6, layer.head_dim, layer.kv_heads, 0.2)
    judged(*made.graph("o", o), layer.passes())


def test_a_selection_is_refused():
    layer = Layer()
    cache = layer.cache()
    layer.append(cache)
    graph, _ = layer.made.graph("o", layer.attend(cache, selection=layer.given("selection", 2, "i32")))
    with pytest.raises(KernelError) as caught:
        plan(graph, Bucket(1, 1, 1, 1, 1, 64, (4,)))
    assert (caught.value.code, caught.value.found) == ("kernel.unsupported", "selection")


def test_groups_of_more_queries_than_a_tile_has_rows_are_decoded_in_several_tiles():
    layer = Layer(heads=40, kv_heads=2)
    cache = layer.cache()
    layer.append(cache)
    judged(*layer.made.graph("o", layer.attend(cache)), layer.passes())


# -- norms of heads ----------------------------------------------------------------------------
def decoder(
    *, head_dim: int = 32, plus_one: bool = False, eps: tuple[float, float] = (1e-6, 1e-6), scaling: Scaling | None = None
) -> tuple[Graph, dict[str, Tensor]]:
    """Projections, norms of the heads of q and k, rope, cache and attention, as Qwen 3 has them."""
    made, heads, kv_heads, hidden, form = Made(), 4, 2, 64, "elemwise.rmsnorm_per_head" + ("_plus_one" if plus_one else "")
    x = made.call("gather.embed", made.tokens(), made.weight("embed", 32, hidden), 32)
    q, k, v = (
        made.call("linear.matmul", x, made.weight(n, c * head_dim, hidden)) for n, c in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    )
    q, k = (made.call(form, y, made.weight(f"{n}_norm", head_dim), head_dim, e) for n, y, e in (("q", q, eps[0]), ("k", k, eps[1])))
    positions = made.trace.input("positions", ValueType("tokens", 1, "i32"))
    q, k = made.call("elemwise.rope", q, k, positions, head_dim, 10000.0, scaling=scaling)
    cache = made.trace.cache_handle(made.trace.add_kv(made.trace.add_space("bf16"), "kv", [kv_heads * head_dim] * 2, head_dim))
    made.call("attn.kv_append", k, v, cache)
    return made.graph("o", made.call("attn.attend", q, cache, made.trace.handle, head_dim, kv_heads, head_dim**-0.5))


PROMPT_AND_TOKEN = [Pass((Chunk(0, list(range(9))), Chunk(1, [5, 6]))), Pass((Chunk(0, [3]), Chunk(1, [4])))]


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("fuse", [True, False])
def test_norms_of_heads_go_with_the_rope_that_reads_them(plus_one, fuse):
    made = judged(*decoder(plus_one=plus_one), PROMPT_AND_TOKEN, fuse=fuse)
    if fuse:
        assert ops_of(made) == ["gather.embed", "joined_matmul", "norm_rope_append", "attn.attend"]


def test_norms_that_differ_stay_launches_of_their_own():
    graph, weights = decoder(eps=(1e-6, 1e-5))
    assert [group.pattern for group in grouped(graph)].count("elemwise.rmsnorm_per_head") == 2
    assert "rope_append" in ops_of(judged(graph, weights, PROMPT_AND_TOKEN))


def test_long_lanes_change_to_the_long_frequencies_of_a_longrope():
    graph, weights = decoder(scaling=longrope([1.0] * 16, [1.5 + i for i in range(16)], 8, 1.2))
    made = judged(graph, weights, PROMPT_AND_TOKEN)
    assert "norm_rope_append" in ops_of(made)
