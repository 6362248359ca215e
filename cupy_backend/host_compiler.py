"""Compiling kernels and the emulator for the CPU with g++."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Literal

from cupy_backend import disk_cache, sources
from cupy_backend.errors import KernelError

Mode = Literal["fast", "checked"]

OLDEST = 12
# -ffp-contract=off: the same bits on every CPU. -fno-strict-aliasing: kernels load numbers through pointers to vectors, as CUDA allows.
# -fno-gnu-unique: a kernel's statics are its own. _FORTIFY_SOURCE mistrusts a stack that is not the thread's. -gdwarf-4: of text that is
# piped in, addr2line names the included files. -fno-var-tracking...: lines are asked for, but never where a variable is, and to find
# that out takes half of the time of a large kernel.
COMMON = (
    "-std=c++20", "-fPIC", "-g1", "-gdwarf-4", "-fno-var-tracking", "-fno-var-tracking-assignments", "-ffp-contract=off",
    "-fno-strict-aliasing", "-fno-threadsafe-statics", "-fno-gnu-unique", "-U_FORTIFY_SOURCE", "-DPOEM_EMULATED=1", "-Wno-unknown-pragmas",
    "-Wno-attributes", "-Wno-psabi",
)  # fmt: skip
# Checked: g++ inserts a call for every access, misaligned pointer, and index or pointer outside an array. The emulator answers it; the
# sanitizers' libraries are not linked. Variables that nobody set hold nonsense.
MODES: dict[Mode, tuple[str, ...]] = {
    "fast": ("-O2",),
    "checked": (
        "-O1", "-fsanitize=thread,alignment,bounds-strict,object-size", "--param=tsan-instrument-func-entry-exit=0",
        "-ftrivial-auto-var-init=pattern",
    ),
}  # fmt: skip


@lru_cache
def compiler() -> tuple[str, str]:
    """The path of g++ ($CXX if set) and its version text. KernelError if it is missing or too old."""
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    hint = "install it: `apt install g++` (Debian, Ubuntu), `dnf install gcc-c++` (Fedora)"
    if path is None:
        raise KernelError(
            "cuda.no-compiler", f"the device `emu` compiles kernels with g++ {OLDEST} or newer, and there is no {name}", hint=hint
        )
    version = subprocess.run([path, "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    if not version or int(version.split(".")[0]) < OLDEST:
        raise KernelError(
            "cuda.no-compiler", f"the device `emu` needs g++ {OLDEST} or newer", found=f"{path}, version {version or 'unknown'}", hint=hint
        )
    return path, version


@lru_cache
def machine_flags() -> tuple[str, ...]:
    """Compile for this very CPU, whose features are part of what a build is named by."""
    return ("-march=native",) if platform.machine() in ("x86_64", "AMD64", "aarch64") else ()


@lru_cache
def machine_name() -> str:
    """Identifies the CPU's instruction set."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return platform.machine() + (found[1] if found else "")


def build_library(stem: str, texts: Sequence[str], flags: tuple[str, ...], identity: str) -> Path:
    """Compiles C++ `texts`, each by a compiler of its own, into one shared library in the cache and returns its path.

    identity: what else the result depends on, such as a digest of included files. KernelError with the compiler's first
    error, at its own file and line, if one does not compile.
    """
    path, version = compiler()
    flags = (*COMMON, *machine_flags(), *flags)
    name = f"{stem}-{sources.digest(*texts, repr(flags), identity, version, machine_name())}.so"

    def build(target: Path) -> None:
        objects = [target.with_suffix(f".{i}.o") for i in range(len(texts))]
        try:
            with ThreadPoolExecutor(len(texts)) as pool:
                jobs = [
                    pool.submit(_run, [path, *flags, "-x", "c++", "-c", "-o", str(made), "-"], text)
                    for made, text in zip(objects, texts, strict=True)
                ]
                for job in jobs:
                    job.result()
            _run([path, "-shared", "-o", str(target), *map(str, objects), "-ldl"])  # without -fsanitize: its library stays out
        finally:
            for made in objects:
                made.unlink(missing_ok=True)

    return disk_cache.get(name, build)


def _run(command: list[str], text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise compile_error(done.stderr, "g++")


def compile_error(log: str, compiler_name: str) -> KernelError:
    """The first error of a compiler's log, at its own place."""
    found = re.search(
        r"^(?P<file>[^\s:(]+)(?::(?P<line>\d+):(?P<column>\d+)|\((?P<nvrtc>\d+)\)): (?:catastrophic |fatal )?error:? ?(?P<text>.*)$",
        log,
        re.MULTILINE,
    )
    if found is None:
        return KernelError("kernel.compile", f"{compiler_name} failed", found=log.strip()[-2000:])
    return KernelError(
        "kernel.compile", f"{compiler_name}: {found['text']}", file=found["file"], line=int(found["line"] or found["nvrtc"]),
        column=int(found["column"] or 0), found=log[found.start() :].strip()[:2000],
    )  # fmt: skip
