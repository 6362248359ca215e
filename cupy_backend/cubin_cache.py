"""Cubins on disk: each kernel is compiled once for an architecture and a compiler."""

import json
import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from cupy_backend import disk_cache, nvrtc, sources
from cupy_backend.nvrtc import Compiled, Nvrtc, Resources

# Subnormals are kept, division and square roots are exact, as the reference has it: NVRTC's defaults, said aloud.
OPTIONS = ("-std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--fmad=true", "-default-device", "-lineinfo")


def get(source: str, kernels: Sequence[str], arch: str, compiler: Nvrtc | None = None) -> Compiled:
    """The kernels of a file of `cuda_src` (or of a path) as one cubin for `arch`, from the cache if it is there.

    KernelError if NVRTC is missing, or at the template's own line if the text does not compile.
    """
    compiler = compiler or nvrtc.load()
    path = sources.find(source)
    text = path.read_text()
    wanted = tuple(sorted(set(kernels)))
    key = sources.digest(text, sources.prelude_digest(), repr((wanted, arch, OPTIONS, compiler.version)))

    def build(target: Path) -> None:
        compiled = compiler.compile(text, path.name, wanted, arch, (*OPTIONS, f"-I{sources.folder()}"))
        header = {
            "names": compiled.names, "log": compiled.log,
            "resources": {kernel: asdict(used) for kernel, used in compiled.resources.items()},
        }  # fmt: skip
        described = json.dumps(header).encode()
        target.write_bytes(len(described).to_bytes(8, "little") + described + compiled.cubin)

    data = disk_cache.get(f"{path.stem}-{arch}-{key}.cubin", build).read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:size])
    return Compiled(
        data[size:], header["names"], {kernel: Resources(**used) for kernel, used in header["resources"].items()}, header["log"]
    )


def get_each(kernels: Collection[tuple[str, str]], arch: str) -> dict[tuple[str, str], Compiled]:
    """Kernels by file and instantiation, each as a cubin of its own, so that none is compiled twice whatever it is asked for with.

    KernelError as in `get`.
    """
    ordered, compiler = sorted(kernels), nvrtc.load()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(ordered, pool.map(lambda each: get(each[0], [each[1]], arch, compiler), ordered), strict=True))
