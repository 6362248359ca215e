"""Random examples of every op and pattern: the interpreter and the kernels on `emu`, checked, lie within their bounds.

Hypothesis picks the sizes, simplest first, so that a failing example shrinks; its name, printed in the message, pastes back into
`poem conformance`.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.examples import Case, Example, example, judge, rounded, session_of, shrunk
from conformance.strategies import Strategy, strategies
from cupy_backend.emulator import EmulatedDevice
from cupy_backend.launch import Launch
from cupy_backend.sources import folder
from poem.errors import PoemError
from tests.cupy_backend.running import schedules, with_fault

STRATEGIES = pytest.mark.parametrize("strategy", strategies().values(), ids=strategies())


def drawn(data: st.DataObject, strategy: Strategy) -> Example:
    """An example of a strategy, its picks drawn by Hypothesis."""
    dtype, weights, flavour = (data.draw(st.sampled_from(options)) for options in (strategy.dtypes, strategy.weights, strategy.flavours))
    case = Case(strategy.name, dtype, weights, flavour, data.draw(st.integers(0, 2**16), "seed"))
    return example(case, pick=lambda count: data.draw(st.integers(0, count - 1)) if count > 1 else 0)


def told(made: Example, device: str) -> str:
    """The command that repeats an example."""
    named = Case(made.case.strategy, made.case.dtype, made.case.weights, made.case.flavour, made.case.seed, made.picks)
    return f"poem conformance {named} --device {device}"


@STRATEGIES
@settings(max_examples=12)
@given(data=st.data())
def test_the_interpreter_lies_within_the_bounds(strategy: Strategy, data: st.DataObject) -> None:
    made = drawn(data, strategy)
    outcome = judge(made, None)
    assert not outcome.fault, f"{outcome.fault}, {outcome.fraction} of the bound\n{told(made, 'interp')}"


@pytest.mark.parametrize(("case", "device"), [
    ("attn.sink:bf16:-:uneven:2499:5.0.0.0.0.1.1", "interp"),  # 1 / (1 + e^x) is 0 where e^x is infinite in float32, times 35
    ("gather.embed_concat:bf16:e4m3row:huge:300034:5.0.0.0.0.0.1", "interp"),  # code times gain rounds to a tie of bf16
    ("attn.attend:bf16:-:special:300004:3.0.0.0.0.0.0.1.0.0.0.1.0.0.6.0", "emu"),  # rows that see only -inf, and rows that see nothing
])  # fmt: skip
def test_examples_that_were_past_their_bounds_once_agree(case: str, device: str) -> None:
    made = example(Case.of(case))
    assert not judge(made, session_of(made, EmulatedDevice()) if device == "emu" else None).fault


@STRATEGIES
@settings(max_examples=8)
@given(data=st.data(), schedule=schedules)
def test_kernels_lie_within_the_bounds_and_the_checker_finds_nothing(strategy: Strategy, data: st.DataObject, schedule: object) -> None:
    made = drawn(data, strategy)
    try:
        session = session_of(made, EmulatedDevice(schedule=schedule))  # type: ignore[arg-type]
        outcome = judge(made, session)
    except PoemError as refusal:
        if refusal.code != "kernel.unsupported":
            raise AssertionError(told(made, "emu")) from refusal
        return
    assert not outcome.fault, f"{outcome.fault}, {outcome.fraction} of the bound\n{told(made, 'emu')}"


class OffByOne(EmulatedDevice):
    """A device whose launches write a one into the first element that they change."""

    def run(self, launch: Launch, memory: object) -> object:  # type: ignore[override]
        done = super().run(launch, memory)  # type: ignore[arg-type]
        for array in launch.arrays().values():
            if array.direction == "write":
                view = memory[array.buffer][array.offset : array.offset + 2]  # type: ignore[index]
                view[...] = np.array([0x80, 0x3F], np.uint8)  # 1.0 in bf16
                return done
        return done


def test_a_wrong_element_is_found_and_the_example_made_simple() -> None:
    made = example(Case.of("elemwise.rmsnorm:bf16:-:tiny:12"))
    outcome = judge(made, session_of(made, OffByOne()))
    assert outcome.fault
    assert outcome.judged is not None
    assert outcome.judged.got[outcome.judged.distance.index] == 1.0
    least = shrunk(made, lambda tried: bool(judge(tried, session_of(tried, OffByOne())).fault))
    assert set(least.picks) == {0}, "whatever the sizes, it fails"


class Spoiling(EmulatedDevice):
    """A device whose appends of single rows also write into the very first cell."""

    def run(self, launch: Launch, memory: object) -> object:  # type: ignore[override]
        done = super().run(launch, memory)  # type: ignore[arg-type]
        if launch.grid == (1, 1, 1):
            memory[launch.arrays()["cache"].buffer][0, 0, 0] = 1.0  # type: ignore[index]
        return done


def test_a_cell_that_an_append_should_have_left_alone_is_found() -> None:
    """Seven rows, then one more."""
    made = example(Case.of("attn.kv_append_shared:f32:-:normal:1:2"))
    assert not judge(made, session_of(made, EmulatedDevice())).fault
    assert "cells that ops.attn.kv_append_shared leaves" in judge(made, session_of(made, Spoiling())).fault


def test_rows_of_padding_go_nowhere_though_they_name_slots() -> None:
    """Three rows in a pass of four, whose slots are given by name."""
    made = example(Case.of("attn.kv_append_shared:f32:-:normal:1:1.0.0.0.1.0.0.1"))
    assert made.padded
    assert len(made.graph.inputs) == 3
    assert not judge(made, session_of(made, EmulatedDevice())).fault


@pytest.mark.parametrize(("case", "line", "unrounded"), [
    ("add_rmsnorm:bf16:-:normal:0:3.0.0.0.0.2.0.0", "v[j] = to_float(from_float<T>(r[j] + v[j]));", "v[j] = r[j] + v[j];"),
    ("rmsnorm_codes:bf16:e4m3tile128a8:uneven:4:3.0.0.0.0.2.0.0", "v[j] = to_float(from_float<T>(v[j]));", ";"),
])  # fmt: skip
def test_a_launch_that_does_not_round_where_its_nodes_do_is_found(case: str, line: str, unrounded: str, tmp_path: Path) -> None:
    """The first node's result stays inside the launch."""
    made, wrong = example(Case.of(case)), tmp_path / "cuda"
    shutil.copytree(folder(), wrong)
    with_fault(folder() / "norms.cu", wrong, line, unrounded)
    assert not judge(made, session_of(made, EmulatedDevice())).fault
    assert judge(made, session_of(made, EmulatedDevice(folder=wrong))).fault


@pytest.mark.parametrize(("case", "line", "wrong_line", "what"), [
    ("choose:f32:-:normal:35:0.0.0.0.0.2", "start + __ffs(reached) - 1;", "start + __ffs(reached);", "tokens"),
    ("choose:f32:-:normal:35:0.0.0.0.0.2", "- (double)peak - log(", "- (double)peak * 1.00001 - log(", "log-probabilities of tokens"),
    ("choose:f32:-:special:43:0.0.0.0.0.2", "wrong |= is_nan(x) ||", "wrong |=", "whether logits are refused"),
])  # fmt: skip
def test_a_token_that_poem_would_not_choose_is_found(case: str, line: str, wrong_line: str, what: str, tmp_path: Path) -> None:
    made, wrong = example(Case.of(case)), tmp_path / "cuda"
    shutil.copytree(folder(), wrong)
    with_fault(folder() / "sampling.cu", wrong, line, wrong_line)
    assert not judge(made, session_of(made, EmulatedDevice())).fault
    assert judge(made, session_of(made, EmulatedDevice(folder=wrong))).fault.startswith(what)


def test_small_integers_are_compared_bit_by_bit() -> None:
    """A result that is off by one unit is within the bound of a product, and yet not the exact one."""
    made = example(Case.of("linear.matmul:bf16:-:integers:3"))
    assert made.exact
    want = rounded(np.array([[256.5, 257.0, 1.0]]), "bf16")
    np.testing.assert_array_equal(want, [[256.0, 256.0, 1.0]])


@pytest.mark.parametrize("seed", range(4))
def test_nan_may_stand_for_infinity_behind_a_product_within_a_launch_too(seed: int) -> None:
    """An infinite x meets itself with the other sign where weights have offsets; the bias comes behind that."""
    made = example(Case("matmul_bias", "bf16", "u4g64", "special", seed, (1,)))
    session = session_of(made, EmulatedDevice())
    assert [len(step.launches) for step in session.plan.steps] == [1]
    outcome = judge(made, session)
    assert not outcome.fault


@pytest.mark.parametrize(("case", "text", "replacement", "says"), [
    ("linear.matmul:bf16:-:normal:1:7.0.0.1.0.0.3.2.1", "if ((kt + 1) % slice_tiles == 0 || kt + 1 == last) {", "if (kt + 1 == last) {",
     "other bits alone than in its batch"),
    ("matmul_glu:bf16:-:integers:2:1.0.0.0.0.2.0.3.0.0.0", "const OUT product = from_float<OUT>(v);",
     "const OUT product = from_float<OUT>(bits_float(float_bits(v) & 0xffff0000u));", "ops.linear.glu is past its bound"),
    ("linear.matmul:bf16:e4m3row:special:136:1.0.0.0.0.0.1.1.0", "(size_t)row * width + k) * F::BITS / 8 : 0), inside ? 16 : 0)",
     "(size_t)row * width + k) * F::BITS / 8 : 0), 16)", "ops.linear.matmul is past its bound"),
])  # fmt: skip
def test_faults_of_a_kernel_are_found(tmp_path: Path, case: str, text: str, replacement: str, says: str) -> None:
    made, wrong = example(Case.of(case)), tmp_path / "cuda"
    shutil.copytree(folder(), wrong)
    with_fault(folder() / "linear.cu", wrong, text, replacement)
    assert not judge(made, session_of(made, EmulatedDevice())).fault
    found = judge(made, session_of(made, EmulatedDevice(folder=wrong)))
    assert says in found.fault, f"{case}: {found.fault}"


def test_a_gated_unit_may_be_nan_where_a_product_within_its_launch_is_infinite() -> None:
    """Also where the unit of infinity is 0."""
    made = example(Case.of("matmul_glu:bf16:u4g64:special:111"))
    assert any(np.isinf(values).any() for pass_ in made.passes for values in pass_.inputs.values())
    assert not judge(made, session_of(made, EmulatedDevice())).fault


def test_rows_that_name_rows_of_other_sequences_are_not_run_alone() -> None:
    made = example(Case.of("gather.gather_rows:bf16:-:special:111"))
    assert made.batch_invariant
    assert len({chunk.sequence for pass_ in made.passes for chunk in pass_.batch}) > 1
    assert not judge(made, session_of(made, EmulatedDevice())).fault
