"""Opening a device by its name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from cupy_backend.launch import Launch
from poem.errors import UsageError


class Device(Protocol):
    """What runs launches. Memory is what `empty` and `upload` return; launches name it by their buffers."""

    name: str

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Uninitialised memory for an array of a leaf dtype."""

    def upload(self, array: np.ndarray) -> Any:
        """A copy of `array` in the device's memory."""

    def download(self, memory: Any) -> np.ndarray:
        """A copy of device memory."""

    def prepare(self, launches: Iterable[Launch]) -> None:
        """Compiles what these launches need."""

    def run(self, launch: Launch, memory: Mapping[str, Any]) -> object:
        """Runs, or enqueues, one launch on the buffers in `memory`."""

    def capture(self, launches: Sequence[Launch], memory: Mapping[str, Any]) -> Callable[[], None]:
        """All these launches as one call, which runs them again on the same memory."""

    def synchronize(self) -> None:
        """Waits for everything enqueued."""


def open_device(name: str) -> Device:
    """`emu`, `emu-fast` (without the checker) or `cuda`. UsageError for other names; KernelError if what a device needs is missing."""
    if name in ("emu", "emu-fast"):
        from cupy_backend.emulator import EmulatedDevice

        return EmulatedDevice(checked=name == "emu")
    if name == "cuda":
        from cupy_backend.cuda import CudaDevice

        return CudaDevice()
    raise UsageError("usage.device", f"there is no device {name}", expected="emu, emu-fast or cuda", found=name)
