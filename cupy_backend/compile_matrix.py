"""Every kernel for every architecture, without a GPU: does it compile, what does it take, does it use the instructions it is meant to?

python -m cupy_backend.compile_matrix            all representative launches, all architectures, every NVRTC that is installed
python -m cupy_backend.compile_matrix elemwise   those of one file
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cupy_backend import cubin_cache, nvrtc
from cupy_backend.errors import KernelError
from cupy_backend.kernels import elemwise, norms, rope
from cupy_backend.launch import Array, Launch
from cupy_backend.nvrtc import Nvrtc, Resources

INSTALL_DISASSEMBLER = "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
WARP = 32
REGISTER_UNIT = 256  # registers are given to a warp in pieces of this size
RESERVED_SHARED = 1 << 10  # of a block's shared memory, taken by the system
# What ptxas says when it gives up on running wgmma asynchronously or on a warpgroup's register budget.
COMPLAINTS = ("Potential Performance Loss", "setmaxnreg ignored")


class Limits(NamedTuple):
    """What a multiprocessor has: resident warps and blocks, registers, bytes of shared memory in all and at most for one block."""

    warps: int
    blocks: int
    registers: int
    shared: int
    block_shared: int


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
LIMITS = {
    "sm_80": Limits(64, 32, 65536, 164 << 10, 163 << 10),
    "sm_89": Limits(48, 24, 65536, 100 << 10, 99 << 10),
    "sm_90a": Limits(64, 32, 65536, 228 << 10, 227 << 10),
    "sm_100a": Limits(64, 32, 65536, 228 << 10, 227 << 10),
    "sm_120a": Limits(48, 24, 65536, 100 << 10, 99 << 10),
}


@dataclass(frozen=True, slots=True)
class Budget:
    """What a kernel may take at most, and what it must have.

    occupancy: of the warps a multiprocessor can hold, the part that must fit. instructions: mnemonics that its machine code must contain.
    architectures: for which it is written.
    """

    registers: int = 255
    spilled: int = 0
    occupancy: float = 0.0
    instructions: tuple[str, ...] = ()
    architectures: tuple[str, ...] = tuple(LIMITS)


# By the file and the beginning of the instantiation; the longest match counts.
BUDGETS: dict[str, Budget] = {
    # One pass over memory: as many loads under way as possible, each of 16 bytes.
    "elemwise.cu": Budget(registers=64, occupancy=0.5),
    "rope.cu": Budget(registers=64, occupancy=0.5),
    "rope.cu rope<bf16, int, 8": Budget(registers=64, occupancy=0.5, instructions=("LDG.E.128", "STG.E.128")),
    "norms.cu": Budget(registers=64, occupancy=0.5),
    "norms.cu add_rmsnorm<bf16, bf16, 8": Budget(registers=64, occupancy=0.5, instructions=("LDG.E.128", "STG.E.128")),
    "norms.cu rmsnorm<bf16, bf16, 8": Budget(registers=64, occupancy=0.5, instructions=("LDG.E.128", "STG.E.128")),
    "elemwise.cu elementwise<Glu<SILU>, 8, bf16": Budget(registers=64, occupancy=0.5, instructions=("LDG.E.128", "STG.E.128", "MUFU.EX2")),
}


class Report(NamedTuple):
    """One launch's kernel on one architecture by one compiler. faults: what exceeds the budget, in words; none if all is well."""

    launch: Launch
    arch: str
    compiler: tuple[int, int]
    resources: Resources
    occupancy: float
    faults: tuple[str, ...]

    def line(self) -> str:
        """The report as a line of a table."""
        used = self.resources
        shared = used.shared + self.launch.shared
        verdict = "; ".join(self.faults) or "ok"
        return (
            f"{self.arch:8} NVRTC {self.compiler[0]}.{self.compiler[1]}  {used.registers:3} registers  {used.spilled:3} spilled  "
            f"{shared:6} shared  {self.occupancy:4.0%} occupancy  {self.launch.kernel}  {verdict}"
        )


def budget_of(launch: Launch, budgets: Mapping[str, Budget]) -> Budget:
    """The budget of a launch's kernel, by the longest entry that it begins with."""
    name = f"{Path(launch.source).name} {launch.kernel}"
    matches = [key for key in budgets if name.startswith(key)]
    return budgets[max(matches, key=len)] if matches else Budget()


def resident_blocks(used: Resources, threads: int, dynamic_shared: int, arch: str) -> int:
    """How many blocks of a launch a multiprocessor of `arch` holds at once."""
    limits = LIMITS[arch]
    warps = -(-threads // WARP)
    shared = used.shared + dynamic_shared
    if shared > limits.block_shared:
        return 0
    per_warp = -(-used.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    return min(limits.blocks, limits.warps // warps, limits.registers // (per_warp * warps), limits.shared // (shared + RESERVED_SHARED))


def check(
    launches: Iterable[Launch], arch: str, compiler: Nvrtc, budgets: Mapping[str, Budget] = BUDGETS, *, disassemble: bool = True
) -> list[Report]:
    """Compiles the launches' kernels for `arch`, those of one file together, and compares each with its budget.

    Launches whose budget leaves `arch` out are passed over. Instructions are looked for if `disassemble`, where the disassembler is
    installed. KernelError if one does not compile.
    """
    reports = []
    by_source: dict[str, list[tuple[Launch, Budget]]] = {}
    for launch in launches:
        budget = budget_of(launch, budgets)
        if arch in budget.architectures:
            by_source.setdefault(launch.source, []).append((launch, budget))
    for source, group in by_source.items():
        compiled = cubin_cache.get(source, [launch.kernel for launch, _ in group], arch, compiler)
        code = machine_code(compiled.cubin) if disassemble and any(budget.instructions for _, budget in group) else None
        for launch, budget in group:
            used = compiled.resources[launch.kernel]
            threads = launch.block[0] * launch.block[1] * launch.block[2]
            blocks = resident_blocks(used, threads, launch.shared, arch)
            occupancy = blocks * -(-threads // WARP) / LIMITS[arch].warps
            faults = []
            if used.registers > budget.registers:
                faults.append(f"more than {budget.registers} registers")
            if used.spilled > budget.spilled:
                faults.append(f"more than {budget.spilled} bytes spilled")
            if blocks == 0:
                faults.append("no block fits a multiprocessor")
            elif occupancy < budget.occupancy:
                faults.append(f"less than {budget.occupancy:.0%} occupancy")
            faults += [f"ptxas: {complaint}" for complaint in COMPLAINTS if complaint in compiled.log]
            if code is not None:
                faults += [f"no {name}" for name in budget.instructions if name not in code.get(compiled.names[launch.kernel], "")]
            reports.append(Report(launch, arch, compiler.version, used, occupancy, tuple(faults)))
    return reports


@lru_cache
def disassembler() -> str | None:
    """The path of cuobjdump, from its wheel or a toolkit; None without it or nvdisasm."""
    spec = importlib.util.find_spec("nvidia")
    folders = [
        f"{root}/{part}/bin"
        for root in (spec.submodule_search_locations or () if spec else ())
        for part in ("cu13", "cu12", "cuda_cuobjdump")
    ]
    path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    found = shutil.which("cuobjdump", path=path)
    return found if found and shutil.which("nvdisasm", path=path) else None


def machine_code(cubin: bytes) -> dict[str, str] | None:
    """The SASS of each kernel in a cubin, by mangled name; None where the disassembler is not installed."""
    tool = disassembler()
    if tool is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        path = os.pathsep.join([str(Path(tool).parent), os.environ.get("PATH", "")])
        done = subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, env={**os.environ, "PATH": path})
    if done.returncode:
        raise KernelError("cuda.disassembler", "cuobjdump failed", found=done.stderr.strip()[-500:], hint=INSTALL_DISASSEMBLER)
    parts = done.stdout.split("Function : ")[1:]
    return {name: body for name, _, body in (part.partition("\n") for part in parts)}


def representative() -> list[Launch]:
    """Launches with the shapes of real models, and the odd shapes that choose other instantiations."""
    launches: list[Launch] = []
    rows = 4

    def array(name: str, *shape: int, dtype: str = "bf16") -> Array:
        return Array(name, "read", shape, dtype)

    rows_of_norms = [
        (4096, "bf16", "bf16", False), (5376, "bf16", "f32", True), (576, "f32", "f32", False), (1001, "f16", "f16", False),
        (65536, "bf16", "bf16", False),
    ]  # fmt: skip
    for width, dtype, gain_dtype, plus_one in rows_of_norms:
        x, w, out = array("x", rows, width, dtype=dtype), array("w", width, dtype=gain_dtype), array("out", rows, width, dtype=dtype)
        residual = None if plus_one else array("residual", rows, width, dtype=dtype)
        launches += norms.rmsnorm(x, w, out, eps=1e-6, plus_one=plus_one, residual=residual)
    for head_dim, plus_one in ((128, False), (96, True), (2048, False)):
        x, gain = array("x", rows, 8 * head_dim), array("w", head_dim)
        launches += norms.rmsnorm(x, gain, x, size=head_dim, eps=1e-6, plus_one=plus_one)
        launches += norms.rmsnorm_gated(x, x, gain, x, size=head_dim, eps=1e-6, act="silu", gate_first=plus_one)
    x, gain, codes, scales = (
        array("x", rows, 4096),
        array("w", 4096),
        array("codes", rows, 4096, dtype="u8"),
        array("scales", 32, rows, dtype="f32"),
    )
    for residual in (None, x):
        launches += norms.rmsnorm_codes(x, gain, codes, scales, eps=1e-6, residual=residual)
    for weight in (gain, None):
        launches += norms.layernorm(x, weight, weight, x, eps=1e-6)
    for act in ("silu", "gelu_tanh", "gelu"):
        launches += elemwise.glu(array("x", rows, 2 * 14336), array("out", rows, 14336), act=act, arch="sm_90a")
    x, row, odd = array("x", rows, 4096), array("b", 4096, dtype="f32"), array("x", rows, 1001)
    launches += elemwise.elementwise("Add", [x, row], x, arch="sm_90a")
    launches += elemwise.elementwise("Softcap", [odd, 30.0], odd, arch="sm_90a")
    gates = elemwise.Part(array("m", rows, 2 * 4096, dtype="f32"), 0, mapped=True)
    launches += elemwise.elementwise("AddGated", [x, gates, x], x, rows_of=array("lane_of_row", rows, dtype="i32"), arch="sm_90a")
    q, k = array("q", rows, 32 * 128), array("k", rows, 8 * 128)
    frequencies, positions = array("frequencies", 64, dtype="f32"), array("positions", rows, dtype="i32")
    pair = np.arange(64)
    for first, second in ((pair, pair + 64), (2 * pair, 2 * pair + 1)):
        packs = rope.packs(first, second, 128, "bf16")
        table = array("packs", *packs.table.shape, dtype="i32")
        launches += rope.rope([q, k], positions, frequencies, table, [q, k], head_dim=128, vector=packs.vector, neighbours=packs.neighbours)
    return launches


def main(families: Sequence[str]) -> int:
    """Prints the table. Exit code 0 if every kernel keeps its budget, 1 if one does not, 2 if nothing can be compiled."""
    compilers = [Nvrtc(path) for path in nvrtc.libraries()]
    if not compilers:
        print(f"NVRTC is not installed: {nvrtc.INSTALL}", file=sys.stderr)
        return 2
    if disassembler() is None:
        print(f"machine code is not looked at: {INSTALL_DISASSEMBLER}", file=sys.stderr)
    chosen = [launch for launch in representative() if not families or Path(launch.source).stem in families]
    failed = False
    for compiler in compilers:
        for arch in LIMITS:
            for report in check(chosen, arch, compiler):
                failed |= bool(report.faults)
                print(report.line())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
