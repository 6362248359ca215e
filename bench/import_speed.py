"""Megabytes a second at which each family of checkpoint is imported, on one core, and the peak of memory.

Run `python -m bench.import_speed [MEGABYTES] [FAMILY ...]` with OMP_NUM_THREADS=1. For each family a checkpoint of four
random weights is written, planned and imported to a `.zt` in a process of its own. Megabytes are those of the checkpoint;
the peak is of anonymous memory, so the mapped checkpoint does not count.
"""

import json
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

K, WEIGHTS = 4096, 4
Tensors = dict[str, tuple[str, np.ndarray]]
PACKAGE = '''"""{count} weights of one shape."""
MODELS = [model("bench", template = template("raw", stop = ["."]), tokenizer = tokenizer())]
DEPLOYMENTS = [deployment("bench", weights = dtype.{dtype}, kv = dtype.bf16)]

def layout(id, deploy):
    return struct(w = [weight([{rows}, {columns}], deploy.weights[0]) for _ in range({count})])

def formats(m):
    return [format("hub", read = [("w.{{i}}.weight", "w.{{i}}")])]

def caches(m, c):
    pass

def forward(m, inputs):
    fail("only imported")
'''


def integers(seed: int, shape: tuple[int, ...], dtype: Any = np.uint8, low: int = 0, high: int | None = None) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high or np.iinfo(dtype).max, shape, dtype)


def floats(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(1).uniform(0.5, 1, shape).astype(dtype)


def bf16(n: int) -> Tensors:
    return {"weight": ("BF16", np.random.default_rng(0).standard_normal((n, K), np.float32).astype(ml_dtypes.bfloat16))}


def fp8(n: int) -> Tensors:
    return {"weight": ("F8_E4M3", integers(0, (n, K)) & 0xF7), "weight_scale_inv": ("F32", floats((-(-n // 128), K // 128)))}


def nvfp4(n: int) -> Tensors:
    scales = integers(1, (n, K // 16), low=1, high=0x7E)
    return {"weight": ("U8", integers(0, (n, K // 2))), "weight_scale": ("F8_E4M3", scales), "weight_scale_2": ("F32", floats(()))}


def mxfp4(n: int) -> Tensors:
    return {"weight_blocks": ("U8", integers(0, (n, K // 32, 16))), "weight_scales": ("U8", integers(1, (n, K // 32), low=110, high=130))}


def mlx(n: int) -> Tensors:
    factors = floats((n, K // 64), ml_dtypes.bfloat16)
    return {"weight": ("U32", integers(0, (n, K // 8), np.uint32)), ".scales": ("BF16", factors), ".biases": ("BF16", factors)}


def packed(n: int) -> Tensors:
    return {
        "weight_packed": ("I32", integers(0, (n, K // 8), np.int32)),
        "weight_scale": ("BF16", floats((n, K // 64), ml_dtypes.bfloat16)),
        "weight_shape": ("I64", np.array([n, K])),
    }


def awq(n: int) -> Tensors:
    return {
        ".qweight": ("I32", integers(0, (K, n // 8), np.int32)),
        ".qzeros": ("I32", integers(1, (K // 128, n // 8), np.int32)),
        ".scales": ("F16", floats((K // 128, n), np.float16)),
    }


def gptq(n: int) -> Tensors:
    return {
        ".qweight": ("I32", integers(0, (K // 8, n), np.int32)),
        ".qzeros": ("I32", np.full((K // 128, n // 8), 0x77777777, np.int32)),
        ".scales": ("F16", floats((K // 128, n), np.float16)),
    }


GROUPS = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 64, "strategy": "group"}}}
# family: what writes a weight of n rows, bits of an element, what config.json says, the dtype of the import
FAMILIES: dict[str, tuple[Callable[[int], Tensors], float, dict[str, Any], str]] = {
    "bf16 kept": (bf16, 16, {}, "bf16"),
    "bf16 to u4g64": (bf16, 16, {}, "u4g64"),
    "bf16 to nvfp4": (bf16, 16, {}, "nvfp4"),
    "bf16 to e4m3tile128": (bf16, 16, {}, "e4m3tile128"),
    "fp8 kept": (fp8, 8, {"quant_method": "fp8", "weight_block_size": [128, 128]}, "e4m3tile128a8"),
    "fp8 decoded": (fp8, 8, {"quant_method": "fp8", "weight_block_size": [128, 128]}, "bf16"),
    "nvfp4 kept": (nvfp4, 4.5, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    "nvfp4 decoded": (nvfp4, 4.5, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "bf16"),
    "mxfp4 kept": (mxfp4, 4.25, {"quant_method": "mxfp4"}, "mxfp4"),
    "mlx kept": (mlx, 4.5, {"bits": 4, "group_size": 64}, "u4g64"),
    "mlx decoded": (mlx, 4.5, {"bits": 4, "group_size": 64}, "bf16"),
    "packed int4 kept": (
        packed, 4.25, {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": GROUPS}, "u4g64",
    ),
    "awq decoded": (awq, 4.16, {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, "bf16"),
    "gptq decoded": (gptq, 4.16, {"quant_method": "gptq", "bits": 4, "group_size": 128}, "bf16"),
}  # fmt: skip


def write(folder: Path, name: str, megabytes: int) -> None:
    """The package `bench.poem` and the checkpoint of one family."""
    make, bits, said, dtype = FAMILIES[name]
    rows = max(128, int(megabytes * 1e6 * 8 / bits / K / WEIGHTS) // 128 * 128)
    folder.mkdir()
    (folder / "bench.poem").write_text(PACKAGE.format(rows=rows, columns=K, count=WEIGHTS, dtype=dtype))
    (folder / "config.json").write_text(json.dumps({"quantization_config": said} if said else {}))
    parts = make(rows)
    header: dict[str, Any] = {}
    end = 0
    for index in range(WEIGHTS):
        for part, (tag, array) in parts.items():
            full = f"w.{index}{part}" if part.startswith(".") else f"w.{index}.{part}"
            header[full] = {"dtype": tag, "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
            end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for index in range(WEIGHTS):  # equal parts would be stored once
            for _, array in parts.values():
                file.write(np.roll(array, index * (array.size > 100_000), axis=0 if array.ndim else None).reshape(-1).view(np.uint8).data)


def run(folder: Path) -> None:
    """Plans and imports one checkpoint; prints megabytes of it, seconds of both and the peak in megabytes."""
    from poem.artifact import write_artifact
    from poem.checkpoint import open_checkpoint
    from poem.importer import plan_import
    from poem.package import load_package

    package = load_package(folder / "bench.poem")
    peak, stop = [0], threading.Event()
    before = _anonymous()
    watcher = threading.Thread(target=lambda: [peak.append(_anonymous()) for _ in iter(lambda: stop.wait(0.005), True)])
    watcher.start()
    start, cpu = time.perf_counter(), time.process_time()
    plan = plan_import(open_checkpoint(folder), [package], deployment=next(iter(package.deployments)))
    planned = time.process_time() - cpu
    write_artifact(folder / "bench.zt", plan)
    seconds, busy = time.perf_counter() - start, time.process_time() - cpu
    stop.set()
    watcher.join()
    size = (folder / "model.safetensors").stat().st_size / 1e6
    print(json.dumps({"mb": size, "plan": planned, "wall": seconds, "cpu": busy, "peak": (max(peak) - before) / 1e6}))


def _anonymous() -> int:
    """Bytes of anonymous memory of this process (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--run"]:
        run(Path(arguments[1]))
        return
    megabytes = int(arguments[0]) if arguments else 400
    for name in arguments[1:] or FAMILIES:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "checkpoint"
            write(folder, name, megabytes)
            done = subprocess.run([sys.executable, "-m", "bench.import_speed", "--run", str(folder)], capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            got = json.loads(done.stdout)
            print(
                f"{name:22} {got['mb'] / got['cpu']:6.0f} MB/s of CPU  {got['mb'] / got['wall']:6.0f} MB/s of wall time  "
                f"plan {got['plan']:5.2f} s  peak {got['peak']:5.0f} MB for {got['mb'] / WEIGHTS:.0f} MB a weight",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
