"""The switch of mutated sources: which mutant is on (switch.h)."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cupy_backend import host_compiler

MOST = 1 << 16  # mutants
NOTING = -(1 << 31)
HERE = Path(__file__).parent


class Switch:
    """Turns mutants on. There is one for the whole process, which kernels find by name."""

    def __init__(self) -> None:
        text = (HERE / "switch.cpp").read_text()
        path = host_compiler.build_library("mutants", [text], ("-O2",), "")
        self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self._on = ctypes.c_int.in_dll(self._library, "poem_mutant")
        self._reached = np.ctypeslib.as_array((ctypes.c_uint8 * MOST).in_dll(self._library, "poem_mutants_reached"))

    def turn_on(self, mutant: int) -> None:
        """The mutant with this number, or none for 0."""
        self._on.value = mutant

    @contextmanager
    def noting(self) -> Iterator[set[int]]:
        """Within, no mutant is on; the set holds afterwards which ones were reached."""
        found: set[int] = set()
        before, self._on.value = self._on.value, NOTING
        self._reached[:] = 0
        try:
            yield found
        finally:
            self._on.value = before
            found.update(np.flatnonzero(self._reached).tolist())
