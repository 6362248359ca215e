"""Running what launch functions return: named arrays become buffers of the emulated device."""

from collections.abc import Sequence

import numpy as np

from cupy_backend.emulator import Counters, EmulatedDevice, Schedule
from cupy_backend.launch import Array, Launch
from tests.cupy_backend.running import WORDS

DEFAULT = Schedule()


class Memory:
    """Buffers by name. `give` puts one there and returns the Array that names it; `run` runs launches on them."""

    def __init__(self, schedule: Schedule = DEFAULT, *, checked: bool = True) -> None:
        self.device = EmulatedDevice(checked=checked, schedule=schedule)
        self.buffers: dict[str, np.ndarray] = {}
        self.counters: list[Counters] = []  # what each launch did

    def give(self, name: str, array: np.ndarray, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> Array:
        """dtype and shape: of the elements, where the array holds codes."""
        self.buffers[name] = self.device.upload(array)
        return Array(name, "read", shape or array.shape, dtype or WORDS.get(array.dtype, "f64"))

    def out(self, name: str, *shape: int, dtype: str) -> Array:
        """Memory for a result, which holds nothing yet."""
        self.buffers[name] = self.device.empty(shape, dtype)
        return Array(name, "read", shape, dtype)

    def run(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            self.counters.append(self.device.run(launch, self.buffers))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.buffers[name]
