"""The stage `kernels`: single kernels at the sizes of real models, by graph replay, beside torch and beside what is to be reached."""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from bench.on_gpu import rivals, workloads
from bench.on_gpu.machine import Machine, Memory, filled, random_block
from bench.on_gpu.rivals import Rival
from bench.on_gpu.stage import Case
from bench.on_gpu.workloads import Maker, Normal, Workload
from cupy_backend.launch import Launch
from cupy_backend.plan.describe import H200_BYTES, H200_FLOPS

REPLAYS = 9  # of which the first two do not count
LONG_ENOUGH = 400e-6  # seconds that a graph should take, so that its launch does not count
CACHES = 3  # copies of a workload together are at least so many times as large as the cache
MOST_COPIES, MOST_LAUNCHES = 64, 256


class Timing(NamedTuple):
    """A kernel at one size. unit: TB/s, TFLOP/s or us. target, first: what a finished and a first version are to reach on an H200."""

    name: str
    make: Maker
    sizes: Mapping[str, int]
    small: Mapping[str, int]
    unit: str
    target: float | None = None
    first: float | None = None
    rival: Rival | None = None


def _product(rows: int, outputs: int, width: int) -> dict[str, int]:
    return {"rows": rows, "outputs": outputs, "width": width}


def _attention(lanes: int, cells: int, heads: int, kv_heads: int) -> dict[str, int]:
    return {"lanes": lanes, "cells": cells, "heads": heads, "kv_heads": kv_heads, "dim": 128}


SMALL_PRODUCT, SMALL_DECODE, SMALL_PREFILL = _product(130, 136, 256), _product(5, 96, 1024), _attention(1, 70, 4, 2)
FEW = _attention(3, 300, 8, 1)
by = workloads.product_by
# Targets: the table of feasible speeds that the kernels were designed by (docs/performance.md).
TIMINGS = (
    Timing("add + rmsnorm, 65536 x 4096", workloads.add_rmsnorm, {"rows": 65536, "width": 4096}, {"rows": 5, "width": 4096}, "TB/s",
           3.9, 3.4, rivals.ADD_RMSNORM),
    Timing("add + rmsnorm, 64 x 4096", workloads.add_rmsnorm, {"rows": 64, "width": 4096}, {"rows": 5, "width": 1000}, "us",
           4.0, None, rivals.ADD_RMSNORM),
    Timing("silu gate, 16384 x 14336", workloads.glu, {"rows": 16384, "inter": 14336}, {"rows": 3, "inter": 256}, "TB/s",
           3.9, 3.4, rivals.GLU),
    Timing("activations to e4m3, 65536 x 4096", workloads.quantise, {"rows": 65536, "width": 4096}, {"rows": 5, "width": 256}, "TB/s",
           3.9, 3.4),
    Timing("bf16 product, 8192^3, mma.sync", by("bf16"), _product(8192, 8192, 8192), SMALL_PRODUCT, "TFLOP/s", 650, 400, rivals.MM),
    Timing("bf16 product, 8192^3, wgmma", by("bf16", warpgroups=True), _product(8192, 8192, 8192), SMALL_PRODUCT, "TFLOP/s",
           650, 400, rivals.MM),
    Timing("fp8 product, 4096 x 7168 x 16384, mma.sync", by("e4m3tile128a8"), _product(4096, 7168, 16384), SMALL_PRODUCT, "TFLOP/s",
           1000, 700, rivals.OF_E4M3_TILES),
    Timing("fp8 product, 4096 x 7168 x 16384, wgmma", by("e4m3tile128a8", warpgroups=True), _product(4096, 7168, 16384), SMALL_PRODUCT,
           "TFLOP/s", 1000, 700, rivals.OF_E4M3_TILES),
    Timing("fp8 product, 64 x 7168 x 16384", by("e4m3tile128a8"), _product(64, 7168, 16384), SMALL_DECODE, "TB/s", 2.8, None,
           rivals.OF_E4M3_TILES),
    *(Timing(f"bf16 decode product, {rows} x 28672 x 4096", by("bf16"), _product(rows, 28672, 4096), SMALL_DECODE, "TB/s", 3.4, 2.6,
             rivals.MM) for rows in (1, 16)),
    *(Timing(f"e4m3 decode product, {rows} x 28672 x 4096", by("e4m3row"), _product(rows, 28672, 4096), SMALL_DECODE, "TB/s", 3.4, 2.6,
             rivals.OF_E4M3) for rows in (1, 16)),
    *(Timing(f"u4g64 decode product, {rows} x 28672 x 8192", by("u4g64"), _product(rows, 28672, 8192), SMALL_DECODE, "TB/s", 2.6, 1.5,
             rivals.OF_U4) for rows in (1, 16)),
    Timing("u4g64 decode product, 1 x 8192 x 8192", by("u4g64"), _product(1, 8192, 8192), SMALL_DECODE, "us", 27, None, rivals.OF_U4),
    *(Timing(f"nvfp4 decode product, {rows} x 28672 x 8192", by("nvfp4"), _product(rows, 28672, 8192), SMALL_DECODE, "TB/s", 2.6, 1.5,
             rivals.OF_NVFP4) for rows in (1, 16)),
    Timing("decode attention, 32 x 4096, 64/8 heads", workloads.attend(decode=True), _attention(32, 4096, 64, 8), FEW, "TB/s", 3.6, 2.6,
           rivals.DECODE),
    Timing("decode attention, 1 x 65536, 32/8 heads", workloads.attend(decode=True), _attention(1, 65536, 32, 8), FEW, "TB/s", None, None,
           rivals.DECODE),
    Timing("prefill attention, 1 x 8192, 32/8 heads", workloads.attend(decode=False), _attention(1, 8192, 32, 8), SMALL_PREFILL, "TFLOP/s",
           450, 300, rivals.PREFILL),
)  # fmt: skip


def workload(timing: Timing, arch: str, *, small: bool, suffix: str = "") -> Workload:
    """A timing's launches and operands."""
    made = Workload(arch, suffix=suffix)
    timing.make(made, timing.small if small else timing.sizes)
    return made


def memory_of(machine: Machine, made: Workload) -> dict[str, Memory]:
    """The buffers of a workload on the device, with their content."""
    found = {}
    for seed, (name, (array, content)) in enumerate(made.buffers.items()):
        block = random_block(array, seed, *content) if isinstance(content, Normal) else content
        found[name] = filled(machine.device, array, block)
    return found


def launches(arch: str, *, small: bool = False) -> list[Launch]:
    """Those of all timings, to be compiled beforehand."""
    return [launch for timing in TIMINGS for launch in workload(timing, arch, small=small).launches]


def cases(machine: Machine) -> Sequence[Case]:
    return [Case(timing.name, partial(measured, machine, timing)) for timing in TIMINGS]


def measured(machine: Machine, timing: Timing) -> dict[str, Any]:
    """A timing's result: how long one run takes, what that is in its unit, and the same of its rival."""
    first = workload(timing, machine.arch, small=machine.small)
    floor = max(first.nbytes / H200_BYTES, first.flops / H200_FLOPS)
    copies = 1 if machine.small else min(MOST_COPIES, max(1, -(-CACHES * machine.cache // max(1, first.nbytes))))
    runs = copies if machine.small else copies * max(1, round(LONG_ENOUGH / floor / copies))
    runs = min(runs, max(copies, MOST_LAUNCHES))
    made = [workload(timing, machine.arch, small=machine.small, suffix=f".{number}") for number in range(copies)]
    memory: dict[str, Memory] = {}
    for each in made:
        memory |= memory_of(machine, each)
    machine.device.prepare(launch for each in made for launch in each.launches)
    replay = machine.device.capture([launch for run in range(runs) for launch in made[run % copies].launches], memory)
    seconds = _each(machine, replay, runs)
    result: dict[str, Any] = {
        "unit": timing.unit, "target": timing.target, "first": timing.first, "copies": copies, "runs": runs, "bytes": first.nbytes,
        "flops": first.flops, **_speed(timing, first, seconds),
    }  # fmt: skip
    values = machine.device.download(memory[made[0].out]).reshape(-1)[:65536].astype(np.float32)
    result["finite"] = bool(np.isfinite(values).all())
    if timing.rival is not None:
        result["rival"] = {"name": timing.rival.name, **_rival(machine, timing, made, memory, runs)}
    return result | {"ok": result["finite"] and result.get("rival", {}).get("agrees", True)}


def _each(machine: Machine, replay: Any, runs: int) -> list[float]:
    """Seconds of one run, by replay."""
    return [each / runs for each in machine.seconds([replay] * (3 if machine.small else REPLAYS))[2:]]


def _speed(timing: Timing, made: Workload, seconds: Sequence[float]) -> dict[str, float]:
    typical = median(seconds)
    value = {"TB/s": made.nbytes / typical / 1e12, "TFLOP/s": made.flops / typical / 1e12, "us": typical * 1e6}[timing.unit]
    return {"seconds": typical, "fastest": min(seconds), "slowest": max(seconds), "value": value}


def _rival(machine: Machine, timing: Timing, made: Sequence[Workload], memory: Mapping[str, Memory], runs: int) -> dict[str, Any]:
    """What torch takes for the same, and whether it gives the same. What goes wrong with it is no fault of the kernel."""
    assert timing.rival is not None
    try:
        import torch
    except ImportError:
        return {"error": "torch is not installed"}
    result: dict[str, Any] = {}
    try:
        sizes = timing.small if machine.small else timing.sizes
        tensors = [
            {
                name.removesuffix(each.suffix): rivals.tensor(torch, machine, memory[name], array)
                for name, (array, _) in each.buffers.items()
            }
            for each in made
        ]
        if timing.rival.exact is not None:
            exact = timing.rival.exact(torch, tensors[0], sizes)
            result |= _compared(torch, machine, made[0], memory, exact, timing.rival.close)
        calls = [timing.rival.make(torch, given, sizes) for given in tensors]
        replay = rivals.captured(torch, machine, [calls[run % len(calls)] for run in range(runs)])
        return result | _speed(timing, made[0], _each(machine, replay, runs))
    except Exception as fault:
        return result | {"error": f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"}
    finally:
        if machine.torch_device() == "cuda":
            torch.cuda.empty_cache()


def _compared(
    torch: Any, machine: Machine, made: Workload, memory: Mapping[str, Memory], call: rivals.Call, close: float
) -> dict[str, Any]:
    """How far the kernel's result is from torch's."""
    array, _ = made.buffers[made.out]
    got = rivals.tensor(torch, machine, memory[made.out], array).float()
    want = call().float()
    difference = float((got - want).norm() / want.norm())
    return {"difference": difference, "agrees": difference <= close}
