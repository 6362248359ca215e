"""Every rule of the checker: the kernel that keeps it passes in any order, the one that breaks it is caught at its line."""

from typing import NamedTuple

import numpy as np
import pytest

from cupy_backend.emulator import EmulatedDevice, Schedule
from cupy_backend.errors import KernelError
from cupy_backend.launch import Launch
from tests.cupy_backend.running import FIFO, KERNELS, launch_of, line_of

SOURCE = KERNELS / "rules.cu"
ORDERS = [Schedule(order, timing, 5) for order, timing in (("fifo", "late"), ("lifo", "early"), ("random", "random"))]


class Rule(NamedTuple):
    name: str
    code: str
    says: str
    settings: dict[str, object] = {}  # noqa: RUF012
    threads: int = 128
    blocks: int = 1
    line: bool = True


PAIR = {"cluster": (2, 1, 1)}
RULES = [
    Rule("past_the_end", "emu.bounds", "write of 4 bytes past the end of `out` [1024] u32, at `out`[1024]"),
    Rule("before_the_start", "emu.bounds", "read of 4 bytes before the start of `in`, by 12 bytes"),
    Rule("read_only_input", "emu.read-only", "write to `in`[0], which this launch only reads"),
    Rule("aligned_access", "emu.misaligned", "an access through a pointer to"),
    Rule("output_read_before_written", "emu.unwritten", "read of `out`[0], which nobody has written"),
    Rule("output_complete", "emu.incomplete", "`out`[77] of [128] u32 was never written", line=False),
    Rule("constant_load", "emu.read-only", "for memory that the launch does not write, and it writes `out`"),
    Rule("null_pointer", "emu.bounds", "read of 4 bytes outside every argument"),
    Rule("array_bounds", "emu.bounds", "index 4 of an array 'unsigned int [4]'"),
    Rule("pointer_bounds", "emu.bounds", "an access through a pointer to 'uint32_t', which points past a variable"),
    Rule("variable_set", "emu.bounds", "write of 4 bytes past the end of `out` [1024] u32, at `out`[2000]"),
    Rule("global_writes_apart", "emu.race", "write to `out`[0], which thread 0 wrote, with no barrier between"),
    Rule("global_barrier", "emu.race", "write to `out`[1], which thread 0 reads, with no barrier between"),
    Rule("global_barrier_before_reuse", "emu.race", "reads, with no barrier between"),
    Rule("blocks_write_apart", "emu.conflict", "write to `out`[0], which block 0 writes in the same launch", blocks=2),
    Rule("blocks_read_apart", "emu.conflict", "read of `out`[0], which block 0 writes in the same launch", blocks=2),
    Rule("last_block", "emu.conflict", "which block 0 writes in the same launch", blocks=2),
    Rule("last_block_by_acquire", "emu.conflict", "which block 0 writes in the same launch", blocks=2),
    Rule("published_flag", "emu.conflict", "which block 0 writes in the same launch", blocks=2),
    Rule("dependency_wait", "emu.dependency", "read of `in`[0] before grid_dependency_wait", {"overlaps": True}),
    Rule("shared_barrier", "emu.unwritten", "read of shared memory that was never written, at static shared memory + 256"),
    Rule("shared_barrier_before_reuse", "emu.race", "write to shared memory that thread 127 reads, with no barrier between"),
    Rule("warp_barrier_in_a_warp", "emu.unwritten", "read of shared memory that was never written"),
    Rule("shared_written_first", "emu.unwritten", "read of shared memory that was never written, at static shared memory + 20"),
    Rule("shared_bounds", "emu.bounds", "past what is declared"),
    Rule("shared_bytes_apart", "emu.race", "write to shared memory that thread 0 wrote, with no barrier between"),
    Rule("shared_atomics", "emu.race", "with no barrier between"),
    Rule("barrier_at_one_place", "emu.divergence", "__syncthreads is reached at two places"),
    Rule("barrier_before_exit", "emu.divergence", "a thread exits while 96 others wait in __syncthreads"),
    Rule("named_barrier_count", "emu.divergence", "named barrier 1 is for 64 threads here and for 128 elsewhere"),
    Rule("named_barrier_orders", "emu.race", "read of shared memory that thread 0 wrote, with no barrier between"),
    Rule("lanes_together", "emu.divergence", "lanes of a warp diverge: a vote meets __shfl_xor_sync"),
    Rule("shuffle_inside_its_mask", "emu.divergence", "a shuffle reads lane 20, which is not in its mask"),
    Rule("matrix_row_alignment", "emu.misaligned", "ldmatrix: the address of a row must be a multiple of 16"),
    Rule("copy_wait", "emu.async", "read of shared memory that a cp.async fills and nobody has waited for"),
    Rule("copy_alignment", "emu.misaligned", "cp.async of 4 bytes to shared address 2"),
    Rule("copy_over_readers", "emu.race", "cp.async to shared memory that thread 127 reads, with no barrier between"),
    Rule("copies_through_an_mbarrier", "emu.unwritten", "read of shared memory that was never written"),
    Rule("bulk_copy_wait", "emu.race", "read of shared memory that a copy that completes on an mbarrier wrote"),
    Rule("mbarrier_arrivals", "emu.protocol", "an mbarrier for 127 arrivals gets more in one phase"),
    Rule("mbarrier_initialised", "emu.race", "an mbarrier is used without a barrier after its initialisation by thread 0"),
    Rule("mbarrier_apart", "emu.protocol", "access of 8 bytes at static shared memory + 0, where an mbarrier is"),
    Rule("bulk_store_fence", "emu.fence", "read by a bulk store of shared memory that thread 0 wrote, without fence_async_proxy"),
    Rule("bulk_store_reuse", "emu.async", "write to shared memory that an unfinished wgmma or bulk store reads"),
    Rule("bulk_store_before_exit", "emu.protocol", "a thread exits before its bulk stores have read shared memory", line=False),
    Rule("cluster_barrier", "emu.unwritten", "of block 1 of the cluster", PAIR, blocks=2),
    Rule("cluster_arrive_once", "emu.protocol", "cluster_arrive twice without cluster_wait between", PAIR, blocks=2),
    Rule("cluster_exit", "emu.protocol", "access to shared memory of block 0 of the cluster, which has exited", PAIR, blocks=2),
    Rule("remote_arrival", "emu.unwritten", "read of shared memory that was never written", PAIR, blocks=2),
    Rule("register_budget", "emu.protocol", "ask for 66560 registers together, and there are 65536", threads=384),
    Rule("matrix_pattern", "emu.misaligned", "begins inside the pattern of its swizzle", {"shared": 32768}),
    Rule("stack_size", "emu.stack", "a thread uses more than 64 KB of local memory"),
]  # fmt: skip


def launch(rule: Rule, right: bool) -> Launch:
    size = rule.threads * rule.blocks if rule.code in ("emu.incomplete", "emu.unwritten") else 1024
    given = {
        "in": (np.arange(1024, dtype=np.uint32), "constant" if rule.name == "constant_load" else "read"),
        "out": (np.zeros(size, np.uint32), "write" if rule.code in ("emu.incomplete", "emu.unwritten") else "update"),
        "count": (np.zeros(8, np.uint32), "update"),
    }
    return launch_of(SOURCE, f"{rule.name}<{'true' if right else 'false'}>", (rule.blocks,), rule.threads, given, **rule.settings)  # type: ignore[arg-type]


def run(rule: Rule, *, right: bool, schedule: Schedule = FIFO, checked: bool = True) -> dict[str, np.ndarray]:
    record = launch(rule, right)
    device = EmulatedDevice(checked=checked, schedule=schedule)
    memory = {name: device.empty(array.shape, array.dtype) for name, array in record.arrays().items()}
    memory["in"][...] = np.arange(1024)
    memory["out"][...] = memory["count"][...] = 0
    device.run(record, memory)
    return memory


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    EmulatedDevice().prepare(launch(rule, right) for rule in RULES for right in (True, False))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_kernel_that_keeps_the_rule_passes_in_every_order(rule: Rule) -> None:
    for schedule in ORDERS:
        run(rule, right=True, schedule=schedule)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_kernel_that_breaks_the_rule_is_caught_at_its_line(rule: Rule) -> None:
    with pytest.raises(KernelError) as caught:
        run(rule, right=False)
    error = caught.value
    assert (error.code, rule.says in error.message) == (rule.code, True), f"want {rule.code}: {rule.says}\ngot {error.render()}"
    assert rule.name in error.message, error.message
    if rule.line:
        assert (error.file.rpartition("/")[2], error.line) == ("rules.cu", line_of(SOURCE, f"// {rule.name}")), error.render()


def test_every_kernel_of_the_file_is_a_rule_that_is_tested() -> None:
    listed = {line.split("(")[1].split(")")[0] for line in SOURCE.read_text().splitlines() if line.startswith("RULE(")}
    assert listed == {rule.name for rule in RULES}


def test_a_launch_is_not_disturbed_by_threads_that_a_failed_one_left_waiting() -> None:
    waiting, right = (next(rule for rule in RULES if rule.name == name) for name in ("cluster_arrive_once", "cluster_barrier"))
    for schedule in ORDERS:
        with pytest.raises(KernelError, match="cluster_arrive twice"):
            run(waiting._replace(threads=256), right=False, schedule=schedule)  # more threads than the launch after it has
        run(right, right=True, schedule=schedule)
