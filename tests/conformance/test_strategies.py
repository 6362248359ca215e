"""Every op and every pattern has a strategy, whose examples are valid, named, repeatable, and exact where they say so."""

from collections.abc import Iterator

import numpy as np
import pytest

from conformance.examples import Case, Example, example, judge
from conformance.strategies import FLAVOURS, Build, Strategy, strategies
from cupy_backend.kernels.elemwise import GRID, THREADS
from cupy_backend.plan.patterns import PATTERNS, grouped
from interp.steps import find_op
from poem.errors import UsageError
from poem.ops import REGISTRY

STRATEGIES = pytest.mark.parametrize("strategy", strategies().values(), ids=strategies())
PATTERN_NAMES = {pattern.name for pattern in PATTERNS}
CHOOSING = "choose"  # what a session makes of the output `logits`


def simplest(case: Case) -> Example:
    return example(case, pick=lambda count: 0)


def cases(strategy: Strategy, seed: int = 0) -> Iterator[Case]:
    """One of each dtype, of values and of weights, and flavour."""
    for dtype in strategy.dtypes:
        for weights in strategy.weights:
            for flavour in strategy.flavours:
                yield Case(strategy.name, dtype, weights, flavour, seed)


def test_every_op_of_the_interpreter_and_every_pattern_of_the_planner_has_a_strategy_and_nothing_else_has() -> None:
    assert set(strategies()) == {op for op in REGISTRY if find_op(op) is not None} | PATTERN_NAMES | {CHOOSING}


@STRATEGIES
def test_every_strategy_makes_a_graph_of_what_it_is_named_for(strategy: Strategy) -> None:
    """An op for all dtypes and flavours; a pattern for all flavours, of the dtypes that it takes."""
    made = {case: simplest(case).graph for case in cases(strategy)}
    if strategy.name in PATTERN_NAMES:
        taken = {case for case, graph in made.items() if strategy.name in {group.pattern for group in grouped(graph)}}
        dtypes = {(case.dtype, case.weights) for case in taken}
        assert taken
        assert taken == {case for case in made if (case.dtype, case.weights) in dtypes}
    elif strategy.name == CHOOSING:
        assert all([output.name for output in graph.outputs] == ["logits"] for graph in made.values())
    else:
        assert not {case for case, graph in made.items() if strategy.name not in {node.op for node in graph.nodes}}


@STRATEGIES
def test_the_interpreter_is_within_the_bounds_of_every_flavour(strategy: Strategy) -> None:
    for seed, flavour in enumerate(strategy.flavours):
        case = Case(strategy.name, strategy.dtypes[seed % len(strategy.dtypes)], strategy.weights[0], flavour, seed)
        for made in (simplest(case), example(case)):
            outcome = judge(made, None)
            assert not outcome.fault, f"{case} with picks {made.picks}: {outcome.fault}, at {outcome.fraction} of the bound"


@STRATEGIES
def test_small_integers_come_out_exact_where_a_strategy_says_so(strategy: Strategy) -> None:
    for weights in strategy.exact:
        for seed, dtype in enumerate(strategy.dtypes):
            made = example(Case(strategy.name, dtype, weights, "integers", seed))
            assert made.exact
            assert not judge(made, None).fault, f"{made.case} with picks {made.picks}"


@STRATEGIES
def test_the_name_of_an_example_reads_back(strategy: Strategy) -> None:
    for case in cases(strategy, seed=17):
        picked = Case(case.strategy, case.dtype, case.weights, case.flavour, case.seed, (1, 0, 12))
        for named in (case, picked):
            assert Case.of(str(named)) == named


@pytest.mark.parametrize(
    "text", ["linear.matmul", "linear.x:bf16:-:normal:1", "linear.matmul:i32:-:normal:1", "linear.matmul:bf16:-:odd:1"]
)
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no example"):
        Case.of(text)


def bits(made: Example) -> list[object]:
    """All that an example is made of."""
    weights = [(name, path, plane.tobytes()) for name, tensor in made.weights.items() for path, plane in tensor.planes.items()]
    inputs = [(name, array.dtype, array.shape, array.tobytes()) for pass_ in made.passes for name, array in pass_.inputs.items()]
    batches = [pass_.batch for pass_ in made.passes]
    return [made.graph, weights, inputs, batches, made.page_size, made.fuse, made.batch_invariant, made.padded, made.warpgroups, made.picks]


@STRATEGIES
def test_a_case_makes_the_same_example_again_and_so_do_its_picks(strategy: Strategy) -> None:
    case = Case(strategy.name, strategy.dtypes[0], strategy.weights[-1], strategy.flavours[-1], 5)
    made = example(case)
    assert bits(example(case)) == bits(made)
    assert bits(example(Case(case.strategy, case.dtype, case.weights, case.flavour, case.seed, made.picks))) == bits(made)
    other = example(Case(case.strategy, case.dtype, case.weights, case.flavour, 6))
    assert bits(other) != bits(made), "another seed makes another example"


def test_flavours_are_what_they_are_called() -> None:
    made = {flavour: Build(lambda count: 0, 4, "f32", "", flavour).numbers(64, 101) for flavour in FLAVOURS}
    assert np.isnan(made["special"]).any()
    assert np.isinf(made["special"]).any()
    assert all(np.isfinite(values).all() for flavour, values in made.items() if flavour != "special")
    assert (made["integers"] == np.round(made["integers"])).all()
    assert 0.9 < np.mean(made["sparse"] == 0.0) < 1.0
    assert (np.abs(made["sparse"][:, :32]).max(axis=1) == 0.0).any()
    sizes = np.log2(np.median(np.abs(made["uneven"][:, :96]).reshape(64, 3, 32), axis=2))
    assert sizes.std() > 3.0
    for flavour, scale in (("normal", 1.0), ("huge", 2.0**40), ("tiny", 2.0**-60)):
        assert 0.5 < np.median(np.abs(made[flavour])) / scale < 1.0
    sums = made["cancelling"][:, :100].reshape(64, 50, 2).sum(-1)
    assert 0.5 < np.mean(sums == 0.0) < 1.0


@pytest.mark.parametrize("word", ["u2g64", "u4g32", "u8g64"])
def test_tiny_weights_are_what_gains_and_offsets_all_but_cancel_to(word: str) -> None:
    build = Build(lambda count: 0, 4, "bf16", word, "tiny")
    build.weight(128, 128)
    (made,) = build.tensors.values()
    group = made.dtype.group_size
    values = np.abs(made.decode(dtype=np.float64)).reshape(128, -1, group)
    gains, offsets = (np.abs(made.planes[name].astype(np.float64)) for name in ("gain", "offset"))
    tiny = (values < gains[..., None]).all(-1) & (values == values[..., :1]).all(-1)
    assert 0.4 < tiny.mean() < 0.6
    assert np.median((values[..., 0] / (gains + offsets))[tiny]) < 2.0**-8
    assert (values[tiny] > 0).mean() > 0.75


@pytest.mark.parametrize("word", ["e4m3row", "e4m3tile128", "nvfp4", "mxfp4", "u4g64", ""])
def test_special_weights_are_nan_here_and_there(word: str) -> None:
    """Among a few seeds: a group or a code, and never all."""
    found = [next(iter(example(Case("linear.matmul", "bf16", word, "special", seed)).weights.values())).decode() for seed in range(40)]
    parts = [float(np.isnan(values).mean()) for values in found]
    assert any(0 < part < 1 for part in parts), parts
    assert np.mean(parts) < 0.25, parts


def test_the_most_biases_are_more_than_any_grid_has_threads() -> None:
    made = example(Case("elemwise.add_bias", "f32", "", "normal", 0, (0, 0, 0, 0, 0, 7)))
    (x,) = made.passes[0].inputs.values()
    assert x.shape[1] % 2 == 1, "a thread takes one element"
    assert x.size > THREADS * max(GRID.values())
