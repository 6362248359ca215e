"""The stages that time: every workload runs on the emulator at a small size, and torch computes the same."""

import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bench.on_gpu import facts, kernels, model, rivals, workloads
from bench.on_gpu.kernels import TIMINGS, Timing, measured, workload
from bench.on_gpu.machine import EmulatedMachine
from bench.on_gpu.rivals import Rival
from cupy_backend.launch import MAXIMUM_GRID
from cupy_backend.plan.describe import H200_BYTES, H200_FLOPS

MACHINE = EmulatedMachine("emu-fast")
BY_NAME = {timing.name: timing for timing in TIMINGS}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_workload_runs_and_its_result_is_finite_and_torchs(name: str) -> None:
    pytest.importorskip("torch", reason="torch comes with the extra oracles")
    result = measured(MACHINE, BY_NAME[name])
    assert result["ok"], result
    assert result["value"] > 0
    rival = BY_NAME[name].rival
    if rival is not None and rival.exact is not None:
        assert 0 <= result["rival"]["difference"] < rival.close
    if rival is not None and rival is not rivals.OF_U4:  # which torch has for GPUs only
        assert result["rival"].keys() >= {"seconds", "value"}, result["rival"]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_workload_at_its_full_size_can_be_launched_and_says_what_it_costs(name: str) -> None:
    """Records only: no memory is taken."""
    made = workload(BY_NAME[name], "sm_90a", small=False)
    assert made.launches
    assert all(size <= most for launch in made.launches for size, most in zip(launch.grid, MAXIMUM_GRID, strict=True))
    buffers = {array.buffer for launch in made.launches for array in launch.arrays().values()}
    assert buffers <= made.buffers.keys()
    for launch in made.launches:
        for array in launch.arrays().values():
            assert array.offset + array.nbytes <= made.buffers[array.buffer][0].nbytes
    floor = max(made.nbytes / H200_BYTES, made.flops / H200_FLOPS)
    assert 1e-7 < floor < 5e-3


def test_what_is_to_be_reached_is_no_faster_than_the_device() -> None:
    for timing in TIMINGS:
        for aim in (timing.target, timing.first):
            if aim is not None and timing.unit == "TB/s":
                assert aim < H200_BYTES / 1e12, timing.name


def test_copies_of_a_workload_have_buffers_of_their_own() -> None:
    first, second = (workload(TIMINGS[0], "sm_90a", small=True, suffix=suffix) for suffix in (".0", ".1"))
    assert not first.buffers.keys() & second.buffers.keys()
    assert first.out == "out.0"


def test_a_small_workload_is_run_from_several_copies_that_do_not_fit_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = EmulatedMachine("emu-fast")
    machine.small, machine.cache = False, 200_000
    monkeypatch.setattr(kernels, "LONG_ENOUGH", 0.0)
    timing = Timing("n", workloads.add_rmsnorm, {"rows": 4, "width": 1024}, {}, "us")
    result = measured(machine, timing)
    assert result["copies"] == -(-3 * 200_000 // result["bytes"]) == result["runs"]


def test_what_goes_wrong_with_torch_is_told_and_is_no_fault_of_the_kernel() -> None:
    pytest.importorskip("torch", reason="torch comes with the extra oracles")

    def broken(torch: object, given: object, sizes: object) -> rivals.Call:
        raise RuntimeError("no such function\nand more")

    timing = Timing("n", workloads.add_rmsnorm, {}, {"rows": 2, "width": 256}, "us", rival=Rival("torch.none", broken))
    result = measured(MACHINE, timing)
    assert result["ok"]
    assert result["rival"] == {"name": "torch.none", "error": "RuntimeError: no such function"}


def test_without_torch_there_is_no_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = measured(MACHINE, TIMINGS[1])
    assert result["ok"]
    assert result["rival"]["error"] == "torch is not installed"


def test_a_result_that_is_not_torchs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch comes with the extra oracles")
    timing = BY_NAME["bf16 decode product, 1 x 28672 x 4096"]

    def ones(given_torch: object, given: rivals.Tensors, sizes: object) -> rivals.Call:
        return lambda: torch.ones(given["out"].shape)

    other = Rival("torch.ones", ones, ones)
    result = measured(MACHINE, timing._replace(rival=other))
    assert not result["ok"]
    assert result["rival"]["difference"] > 0.5


def test_on_a_gpu_torchs_calls_are_one_graph() -> None:
    """Warm-up outside of the capture, then all calls once inside it."""
    said: list[str] = []

    @contextmanager
    def capturing(graph: object) -> Iterator[None]:
        said.append("begin")
        yield
        said.append("end")

    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(
            synchronize=lambda: said.append("synchronize"), graph=capturing,
            CUDAGraph=lambda: types.SimpleNamespace(replay=lambda: said.append("replay")),
        )
    )  # fmt: skip
    machine = types.SimpleNamespace(torch_device=lambda: "cuda")
    replay = rivals.captured(torch, machine, [lambda: said.append("a"), lambda: said.append("b")])  # type: ignore[arg-type]
    replay()
    assert said == ["a", "b", "synchronize", "begin", "a", "b", "end", "replay"]


def test_torch_has_what_the_rivals_call() -> None:
    torch = pytest.importorskip("torch", reason="torch comes with the extra oracles")
    wanted = {
        "_scaled_mm": ("scale_a", "scale_b", "out_dtype", "use_fast_accum"), "_weight_int4pack_mm": ("qGroupSize", "qScaleAndZeros"),
        "_convert_weight_to_int4pack": ("innerKTiles",),
    }  # fmt: skip
    for name, parameters in wanted.items():
        schema = str(getattr(torch.ops.aten, name).default._schema)
        assert all(parameter in schema for parameter in parameters), schema
    assert hasattr(torch.cuda, "CUDAGraph")
    assert hasattr(torch.cuda, "graph")


# ----------------------------------------------------------------------------------------------------------- facts and models
def test_the_facts_are_measured() -> None:
    results = {case.name: case.run() for case in facts.cases(MACHINE)}
    assert results.keys() == {"device", "copy", "launch in a graph"}
    assert results["copy"]["value"] > 0
    assert results["launch in a graph"]["value"] > 0


def test_a_model_with_weights_that_are_made_on_the_device_prefills_and_decodes() -> None:
    cases = {case.name: case for case in model.cases(MACHINE)}
    for name in ("prefill 1 x 40", "decode 1", "decode 2"):
        result = cases[f"llama31-mini-bf16-kv-bf16: {name}"].run()
        assert result["ok"], result
        assert result["value"] > 0
        assert result["floor"] < result["seconds"]
    assert result["context"] > model.SMALL.context
    assert result["graph_seconds"] > 0


def test_one_deployment_at_a_time_is_on_the_device() -> None:
    released: list[int] = []

    class Counting(EmulatedMachine):
        def release(self) -> None:
            released.append(1)

    slot = model.Slot(Counting("emu-fast"))
    first = slot.of(model.RUNS[0])
    assert slot.of(model.RUNS[0]) is first
    assert slot.of(model.RUNS[1]) is not first
    assert len(released) == 2


def test_the_plans_of_whole_models_are_known_beforehand() -> None:
    found = model.launches("sm_90a")
    assert len({launch.kernel for launch in found}) > 20
    assert any(launch.source == "linear_warpgroups.cu" for launch in found)


PLANES = (("data", "bf16", (4, 8)), ("code", "u8", (4, 8)), ("gain", "f32", (4, 8)), ("offset", "bf16", (4, 8)), ("row_gain", "f32", (4,)))


@pytest.mark.parametrize(("plane", "dtype", "shape"), PLANES)
def test_weights_are_small(plane: str, dtype: str, shape: tuple[int, ...]) -> None:
    from bench.on_gpu.machine import random_block
    from cupy_backend.plan.record import Stored

    stored = Stored("w", (0,), plane, shape, dtype)
    block = random_block(stored.array, 0, *model.content_of(stored))
    if np.dtype(block.dtype).kind not in "iu":
        assert np.abs(block.astype(np.float64)).max() < 0.2


def test_what_is_to_be_reached_is_what_the_documentation_says() -> None:
    section = (Path(__file__).parents[3] / "docs" / "performance.md").read_text().partition("## On a GPU")[2]
    for timing in TIMINGS:
        for aim in (timing.target, timing.first):
            assert aim is None or re.search(rf"\b{aim:g}\b", section), f"{timing.name}: {aim} {timing.unit}"
