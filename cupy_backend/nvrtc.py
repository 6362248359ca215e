"""NVRTC, NVIDIA's run-time compiler, through ctypes: CUDA text to a cubin, with neither toolkit nor driver nor GPU."""

import ctypes
import glob
import importlib.util
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cupy_backend.errors import KernelError
from cupy_backend.host_compiler import compile_error

INSTALL = "pip install nvidia-cuda-nvrtc (CUDA 13) or nvidia-cuda-nvrtc-cu12 (CUDA 12)"


@dataclass(frozen=True, slots=True)
class Resources:
    """What ptxas says one kernel takes: registers a thread, bytes spilled, of stack, and of static shared memory."""

    registers: int
    spilled: int
    stack: int
    shared: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A cubin with its kernels' mangled names and resources, by the expressions they were asked for."""

    cubin: bytes
    names: dict[str, str]
    resources: dict[str, Resources]
    log: str


class Nvrtc:
    """One NVRTC library. version: (major, minor)."""

    def __init__(self, path: str) -> None:
        self.path = path
        # The library finds its builtins by name, and not every wheel tells the loader where they are.
        for builtins in sorted(glob.glob(os.path.join(os.path.dirname(path), "libnvrtc-builtins.so.*"))):
            ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    def architectures(self) -> tuple[int, ...]:
        """The compute capabilities it compiles for: 80 for 8.0."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        found = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(found))
        return tuple(found)

    def compile(self, text: str, name: str, kernels: tuple[str, ...], arch: str, options: tuple[str, ...] = ()) -> Compiled:
        """Compiles `text`, called `name` in messages, for `arch` (`sm_90a`); `kernels` are the instantiations wanted.

        KernelError with the first error at its own file and line.
        """
        library, program = self._library, ctypes.c_void_p()
        self._check(library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None))
        try:
            for kernel in kernels:
                self._check(library.nvrtcAddNameExpression(program, kernel.encode()))
            flags = (f"--gpu-architecture={arch}", "--ptxas-options=-v", *options)
            status = library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags)))
            log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                raise compile_error(log or self._message(status), f"NVRTC {self.version[0]}.{self.version[1]} for {arch}")
            names = {kernel: self._lowered(program, kernel) for kernel in kernels}
            cubin = self._bytes(program, "CUBIN")
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))
        by_name = resources(log)
        return Compiled(cubin, names, {kernel: by_name[mangled] for kernel, mangled in names.items()}, log)

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def _lowered(self, program: ctypes.c_void_p, kernel: str) -> str:
        lowered = ctypes.c_char_p()
        self._check(self._library.nvrtcGetLoweredName(program, kernel.encode(), ctypes.byref(lowered)))
        return (lowered.value or b"").decode()

    def _message(self, status: int) -> str:
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return str(self._library.nvrtcGetErrorString(status).decode())

    def _check(self, status: int) -> None:
        if status:
            raise KernelError("cuda.nvrtc", f"NVRTC refused: {self._message(status)}", found=self.path)


_REPORT = re.compile(
    r"Compiling entry function '(?P<name>\S+)' for '\S+'.*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


def resources(log: str) -> dict[str, Resources]:
    """What the log of a compilation with `--ptxas-options=-v` says of each kernel, by mangled name."""
    found = {}
    for match in _REPORT.finditer(log):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        spilled = int(match["stores"]) + int(match["loads"])
        found[match["name"]] = Resources(int(match["registers"]), spilled, int(match["stack"]), int(shared[1]) if shared else 0)
    return found


def libraries() -> list[str]:
    """NVRTC libraries of installed wheels, newest first, then that of a toolkit."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    found = [path for root in roots for path in glob.glob(f"{root}/*/lib/libnvrtc.so.1[0-9]")]
    toolkit = Path(os.environ.get("CUDA_PATH") or "/usr/local/cuda") / "lib64"
    return sorted(found, key=os.path.basename, reverse=True) + sorted(glob.glob(str(toolkit / "libnvrtc.so.1[0-9]")), reverse=True)


@lru_cache
def load(major: int | None = None) -> Nvrtc:
    """The newest NVRTC there is, or that of CUDA `major`. KernelError with the install command if there is none."""
    for path in libraries():
        if major is None or path.endswith(f".so.{major}"):
            return Nvrtc(path)
    wanted = "NVRTC" if major is None else f"NVRTC {major}"
    raise KernelError("cuda.no-nvrtc", f"{wanted} compiles the kernels for the GPU, and it is not installed", hint=INSTALL)
