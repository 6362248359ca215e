"""What each kernel may take of a multiprocessor, and which instructions it must have: as data, by its family."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cupy_backend.kernels import linear_tables
from cupy_backend.launch import Launch
from cupy_backend.plan import ARCHS


@dataclass(frozen=True, slots=True)
class Budget:
    """What kernels may take at most, and what they must have.

    kernels: a pattern of file and instantiation, `*` for anything. occupancy: of the warps a multiprocessor can hold, the part that must
    fit. under_way: bytes of dynamic shared memory, the rings of all blocks that a multiprocessor holds. instructions: mnemonics in the
    machine code. architectures: those it is about.
    """

    kernels: str = "*"
    registers: int = 255
    spilled: int = 0
    occupancy: float = 0.0
    under_way: int = 0
    instructions: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ARCHS


def of(launch: Launch, arch: str, budgets: Sequence[Budget]) -> Budget:
    """The first of the budgets that is about a launch's kernel on `arch`. Without one a kernel must fit, and spill nothing."""
    name = f"{Path(launch.source).name} {launch.kernel}"
    about = (budget for budget in budgets if arch in budget.architectures and fnmatchcase(name, budget.kernels))
    return next(about, Budget())


# -- the families ------------------------------------------------------------------------------
# One pass over memory: each load and store of 16 bytes, and half of the warps, so that enough loads are under way.
LOAD, STORE = "LDG.E.128", "STG.E.128"
PASS: dict[str, Any] = {"registers": 64, "occupancy": 0.5}
# Products of few rows wait for weights. By Little's law a multiprocessor needs bandwidth times latency of them under way: about 54 KB where
# memory is fastest (8 TB/s by 1 us over 148 multiprocessors of sm_100a). A warp for each of the four schedulers does the rest.
WEIGHTS: dict[str, Any] = {"under_way": 64 << 10, "occupancy": 4 / 64}
# Products of many rows wait for tensor cores: two warps for each scheduler, one multiplies while the other loads.
TENSOR_CORES: dict[str, Any] = {"occupancy": 8 / 64}
TILES = {"64, 8": WEIGHTS, "64, 16": WEIGHTS, "64, 32": WEIGHTS, "128": TENSOR_CORES}
RING = ("LDGSTS.E.BYPASS", "LDS.128")  # tiles arrive by cp.async and leave 16 bytes at a time
BF16, F16, FP8 = "HMMA.16816.F32.BF16", "HMMA.16816.F32", "QMMA.16832.F32.E4M3.E4M3"
TMA = ("UTMALDG.2D", "UTMASTG.2D", "SYNCS", "USETMAXREG")
WARPGROUPS: dict[str, Any] = {"registers": 168, "occupancy": 12 / 64}  # before they exchange registers

BUDGETS = (
    Budget("norms.cu *rmsnorm<bf16, bf16, 8, *", instructions=(LOAD, STORE), **PASS),
    Budget("norms.cu rmsnorm_gated<*", registers=96, occupancy=0.25),
    Budget("rope.cu rope<bf16, *, 8, *", instructions=(LOAD, STORE), **PASS),
    Budget("elemwise.cu elementwise<Glu<SILU>, 8, bf16, *", instructions=(LOAD, STORE, "MUFU.EX2"), **PASS),
    Budget("elemwise.cu elementwise<*, 8, bf16, *", instructions=(LOAD, STORE), **PASS),
    Budget("gather.cu copy_*<uint4*", instructions=(LOAD, STORE), **PASS),
    Budget("sampling.cu largest_of_pieces<bf16, 8>", instructions=(LOAD,), **PASS),
    Budget("sampling.cu index_of_largest", registers=64),  # a warp for each row
    *(Budget(f"{file}.cu *", **PASS) for file in ("norms", "rope", "elemwise", "gather", "sampling", "linear_plain")),
    Budget("attn.cu attention<*", spilled=64, instructions=("LDGSTS.E.BYPASS", "LDSM.16.M88.4", "LDSM.16.MT88.4", F16)),
    Budget("attn_append.cu rope_append<bf16, *, 8, *", instructions=(LOAD,), **PASS),
    Budget("attn_append.cu *", **PASS),
    # Once a tile, around the error functions of its results.
    Budget("linear_warpgroups.cu *<bf16, bf16, GELU, *", spilled=40, instructions=("HGMMA.64x256x16.F32.BF16", *TMA), **WARPGROUPS),
    Budget("linear_warpgroups.cu *<bf16, bf16, *", instructions=("HGMMA.64x256x16.F32.BF16", *TMA), **WARPGROUPS),
    Budget("linear_warpgroups.cu *<bf16, *", instructions=("HGMMA.64x128x16.F32.BF16", *TMA), **WARPGROUPS),
    Budget("linear_warpgroups.cu *<e4m3, *", instructions=("QGMMA.64x128x32.F32.E4M3.E4M3", "UBLKCP", *TMA), **WARPGROUPS),
    # NVRTC 13.5, of gated units: what mma.sync makes of codes takes all registers there, and three values of a step leave them.
    Budget(
        "linear.cu product<*, e4m3, e4m3, bf16, SILU, 64, 32, *",
        spilled=12,
        instructions=(*RING, F16),
        architectures=("sm_100a",),
        **WEIGHTS,
    ),
    *(
        Budget(f"linear.cu product<{types}, {tile}, *", instructions=(*RING, multiplies), architectures=architectures, **limits)
        for types, multiplies, architectures in (
            ("*, e4m3, e4m3, *", FP8, linear_tables.PRODUCTS_OF_CODES),
            ("*, e4m3, e4m3, *", F16, ARCHS),  # what mma.sync makes of codes elsewhere
            ("*", BF16, ARCHS),
        )
        for tile, limits in TILES.items()
    ),
)
