"""Every kernel for every architecture, without a GPU: does it compile, what does it take, does it use the instructions it is meant to?

python -m cupy_backend.compile_matrix               all instantiations, all architectures, every NVRTC that is installed
python -m cupy_backend.compile_matrix linear norms  those of these files
python -m cupy_backend.compile_matrix --tested      what the tests compile, see `tested`
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

from cupy_backend import budgets, cubin_cache, instantiations, nvrtc
from cupy_backend.budgets import BUDGETS, Budget
from cupy_backend.errors import KernelError
from cupy_backend.kernels.linear_tables import RESERVED_SHARED
from cupy_backend.launch import Launch
from cupy_backend.nvrtc import Compiled, Nvrtc, Resources
from cupy_backend.plan import ARCHS

INSTALL_DISASSEMBLER = "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
WARP = 32
REGISTER_UNIT = 256  # registers are given to a warp in pieces of this size
# What ptxas says when it gives up on running wgmma asynchronously or on a warpgroup's register budget.
COMPLAINTS = ("Potential Performance Loss", "setmaxnreg ignored")
PROGRAM = 16  # instantiations that are compiled together: what they have in common is read once, and processes share the work evenly
TESTED_WHOLLY = "sm_90a"  # which has most kernels


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


def resident_blocks(used: Resources, threads: int, dynamic_shared: int, arch: str) -> int:
    """How many blocks of a launch a multiprocessor of `arch` holds at once."""
    limits = LIMITS[arch]
    warps = -(-threads // WARP)
    shared = used.shared + dynamic_shared
    if shared > limits.block_shared:
        return 0
    per_warp = -(-used.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    return min(limits.blocks, limits.warps // warps, limits.registers // (per_warp * warps), limits.shared // (shared + RESERVED_SHARED))


# -- what is compiled --------------------------------------------------------------------------
def everything(arch: str) -> list[Launch]:
    """All instantiations for `arch`."""
    return [*instantiations.shipped(arch), *instantiations.others(arch)]


def tested(arch: str, newest: bool) -> list[Launch]:
    """What the tests compile, by the newest NVRTC or another one: in all about six minutes of one core.

    The newest compiles for `TESTED_WHOLLY` all that shipped models need. For other architectures, and of what else there is, it compiles
    each template once with each first argument, a format, a function or a dtype, and products with each tile. Other compilers compile each
    template once.
    """
    if not newest:
        return one_of_each(everything(arch))
    if arch != TESTED_WHOLLY:
        return one_of_each(everything(arch), arguments=1)
    return [*instantiations.shipped(arch), *one_of_each(instantiations.others(arch), arguments=1)]


def one_of_each(launches: Iterable[Launch], *, arguments: int = 0) -> list[Launch]:
    """Of each template, or of each with the same first `arguments` arguments, and the same tile if it is a product, the launch that takes
    most shared memory."""
    found: dict[tuple[str, ...], Launch] = {}
    for launch in launches:
        words = _template(launch.kernel)
        tile = words[6:8] if arguments and words[0] == "product" else []  # its ring of tiles decides how many blocks fit
        key = (launch.source, *words[: 1 + arguments], *tile)
        if key not in found or found[key].shared < launch.shared:
            found[key] = launch
    return list(found.values())


def _template(kernel: str) -> list[str]:
    """The name of a template and its arguments: `product`, `Affine<4, 64>`, `bf16` of `product<Affine<4, 64>, bf16>`."""
    parts, depth = [""], 0
    for letter in kernel.replace(", ", ","):
        depth += (letter == "<") - (letter == ">")
        if depth == 1 and letter in "<,":
            parts.append("")
        elif depth or letter != ">":
            parts[-1] += letter
    return parts


def programs(launches: Iterable[Launch]) -> list[list[Launch]]:
    """Launches that are compiled together: of one file, at most `PROGRAM` kernels."""
    by_source: dict[str, list[Launch]] = {}
    for launch in sorted(launches, key=lambda launch: (launch.source, launch.kernel, launch.shared)):
        by_source.setdefault(launch.source, []).append(launch)
    return [group[start : start + PROGRAM] for group in by_source.values() for start in range(0, len(group), PROGRAM)]


# -- how it is judged --------------------------------------------------------------------------
def check(
    launches: Iterable[Launch], arch: str, compiler: Nvrtc, limits: Sequence[Budget] = BUDGETS, *, disassemble: bool = True
) -> list[Report]:
    """Compiles the launches' kernels for `arch` and compares each with its budget, in the order of `programs`.

    Instructions are looked for if `disassemble`, where the disassembler is installed. KernelError if one does not compile.
    """
    reports = []
    for program in programs(launches):
        compiled = cubin_cache.get(program[0].source, [launch.kernel for launch in program], arch, compiler)
        kept = [budgets.of(launch, arch, limits) for launch in program]
        code = machine_code(compiled.cubin) if disassemble and any(budget.instructions for budget in kept) else None
        reports += [_judged(launch, budget, arch, compiler, compiled, code) for launch, budget in zip(program, kept, strict=True)]
    return reports


def _judged(launch: Launch, budget: Budget, arch: str, compiler: Nvrtc, compiled: Compiled, code: dict[str, str] | None) -> Report:
    used, name = compiled.resources[launch.kernel], compiled.names[launch.kernel]
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
    if blocks * launch.shared < budget.under_way:
        faults.append(f"less than {budget.under_way} bytes under way")
    of_others = set(compiled.names.values()) - {name}
    for line in compiled.log.splitlines():
        if any(complaint in line for complaint in COMPLAINTS) and not any(f"'{other}'" in line for other in of_others):
            faults.append(f"ptxas: {line.strip()}")
    if code is not None:
        faults += [f"no {instruction}" for instruction in budget.instructions if instruction not in code.get(name, "")]
    return Report(launch, arch, compiler.version, used, occupancy, tuple(faults))


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


# -- the table ---------------------------------------------------------------------------------
def main(words: Sequence[str]) -> int:
    """Prints the table. Exit code 0 if every kernel keeps its budget, 1 if one does not, 2 if nothing can be compiled."""
    parser = argparse.ArgumentParser(prog="python -m cupy_backend.compile_matrix", description="Every kernel for every architecture.")
    parser.add_argument("files", nargs="*", metavar="FILE", help="of cuda_src, without .cu (default: all)")
    parser.add_argument("--arch", action="append", choices=ARCHS, help="only for this architecture; repeat for several")
    parser.add_argument("--tested", action="store_true", help="only what the tests compile")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N", help="that compile at the same time (%(default)s)")
    chosen = parser.parse_args(words)
    found = nvrtc.libraries()
    if not found:
        print(f"NVRTC is not installed: {nvrtc.INSTALL}", file=sys.stderr)
        return 2
    if disassembler() is None:
        print(f"machine code is not looked at: {INSTALL_DISASSEMBLER}", file=sys.stderr)
    archs = chosen.arch or ARCHS
    with ProcessPoolExecutor(chosen.processes) as pool:
        started, count, failed = time.perf_counter(), 0, 0
        work = [
            (program, arch, path, path == found[0])  # machine code of the newest is looked at
            for arch, wanted in zip(archs, pool.map(_wanted, archs, repeat(chosen.tested)), strict=True)
            for path in found
            for program in programs(wanted[path == found[0]])
            if not chosen.files or Path(program[0].source).stem in chosen.files
        ]
        for report in chain.from_iterable(pool.map(_checked, *zip(*work, strict=True))) if work else ():
            print(report.line(), flush=True)
            count, failed = count + 1, failed + bool(report.faults)
    print(f"{count} kernels, {failed} over budget, {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return int(failed > 0)


def _wanted(arch: str, only_tested: bool) -> dict[bool, list[Launch]]:
    """By whether the compiler is the newest."""
    return {newest: tested(arch, newest) if only_tested else everything(arch) for newest in (False, True)}


def _checked(program: list[Launch], arch: str, path: str, disassemble: bool) -> list[Report]:
    return check(program, arch, _compiler(path), disassemble=disassemble)


@lru_cache
def _compiler(path: str) -> Nvrtc:
    return Nvrtc(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
