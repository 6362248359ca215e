"""Running kernels in tests: arrays in, arrays out, and faults planted in a kernel's text."""

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from cupy_backend.emulator import Counters, EmulatedDevice, Schedule
from cupy_backend.launch import Argument, Array, Direction, Launch, Scalar, TensorMap

FIFO = Schedule()
KERNELS = Path(__file__).parent / "kernels"
WORDS = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16", np.dtype(ml_dtypes.bfloat16): "bf16"}
WORDS |= {np.dtype(f"{kind}{size}"): f"{kind}{size * 8}" for kind in "iu" for size in (1, 2, 4, 8)}

schedules = st.builds(
    Schedule,
    order=st.sampled_from(("fifo", "lifo", "random")),
    timing=st.sampled_from(("early", "late", "random")),
    seed=st.integers(1, 2**31),
)


class Tiles:
    """A tensor map argument: an array, the box of a tile in the order of its shape, and the swizzle."""

    def __init__(self, array: np.ndarray, direction: Direction, box: tuple[int, ...], swizzle: int = 128) -> None:
        self.array, self.direction, self.box, self.swizzle = array, direction, box, swizzle


Given = tuple[np.ndarray, Direction] | Tiles | int | float


def launch_of(
    source: str | Path, kernel: str, grid: tuple[int, ...], threads: int, given: Mapping[str, Given], **settings: object
) -> Launch:
    """A launch record whose buffers have the parameters' names. Whole numbers are passed as i32."""
    arguments: dict[str, Argument] = {}
    for name, value in given.items():
        if isinstance(value, Tiles):
            array = Array(name, value.direction, value.array.shape, WORDS[value.array.dtype])
            arguments[name] = TensorMap(array, value.box, value.swizzle)
        elif isinstance(value, tuple):
            arguments[name] = Array(name, value[1], value[0].shape, WORDS[value[0].dtype])
        else:
            arguments[name] = Scalar(value, "f32" if isinstance(value, float) else "i32")
    whole_grid = (*grid, 1, 1)[:3]
    return Launch(str(source), kernel, whole_grid, (threads, 1, 1), arguments, **settings)  # type: ignore[arg-type]


def run(
    source: str | Path, kernel: str, grid: tuple[int, ...], threads: int, given: Mapping[str, Given], *,
    device: EmulatedDevice | None = None, schedule: Schedule = FIFO, **settings: object,
) -> Counters:  # fmt: skip
    """Runs one launch, checked unless `device` says otherwise. Arrays with direction write, update or scratch are changed."""
    memory = {
        name: value.array if isinstance(value, Tiles) else value[0] for name, value in given.items() if not isinstance(value, (int, float))
    }
    launch = launch_of(source, kernel, grid, threads, given, **settings)
    return (device or EmulatedDevice(schedule=schedule)).run(launch, memory)


def with_fault(source: Path, folder: Path, text: str, replacement: str) -> Path:
    """A copy of a kernel's file in which `text`, which occurs once, is replaced. Lines keep their numbers."""
    original = source.read_text()
    assert original.count(text) == 1, f"{source.name} has `{text}` {original.count(text)} times"
    assert text.count("\n") == replacement.count("\n"), "a planted fault keeps the lines' numbers"
    path = folder / source.name
    path.write_text(original.replace(text, replacement))
    return path


def line_of(source: Path, text: str) -> int:
    """The number of the first line that contains `text`."""
    return next(number for number, line in enumerate(source.read_text().splitlines(), 1) if text in line)


def normal(seed: int, *shape: int, dtype: type = ml_dtypes.bfloat16, scale: float = 1.0) -> np.ndarray:
    """Normally distributed numbers, reproducible from the seed."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)
