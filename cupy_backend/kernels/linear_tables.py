"""How matrix products are cut: tiles by rows, slices of the contracted axis by the weight's shape, and what each format is called."""

from dataclasses import dataclass
from typing import NamedTuple

from cupy_backend.errors import KernelError
from poem.dtypes import Dtype

BLOCKS = {"sm_80": 108, "sm_89": 142, "sm_90a": 132, "sm_100a": 148, "sm_120a": 188}  # multiprocessors
SHARED = {"sm_80": 163 << 10, "sm_89": 99 << 10, "sm_90a": 227 << 10, "sm_100a": 227 << 10, "sm_120a": 99 << 10}  # bytes of a block
STATIC_SHARED = 1 << 10  # what a kernel declares itself, rounded up
RESERVED_SHARED = 1 << 10  # taken by the system for each block on a multiprocessor, which has that much more than a block may have
OUT_TYPES = {"bf16": "bf16", "f32": "float"}
RUN = 128  # columns that share a scale of activations
SLICE = 256  # slices are multiples of this many columns, as every tile is a divisor of it
SMALLEST_SLICE = 512
COUNTERS = 4096  # tiles that may be cut into slices of several blocks


class Format(NamedTuple):
    """A weight format of the kernels. group: columns of a gain (0: none). row_gain: a float for each row."""

    name: str
    code_bits: int
    group: int = 0
    gain: str = "u8"
    has_offset: bool = False
    row_gain: bool = False
    promoted: bool = False


def _affine(bits: int, group: int) -> Format:
    return Format(f"Affine<{bits}, {group}>", bits, group, "bf16", has_offset=True, promoted=True)


FORMATS = {
    "bf16": Format("Plain", 16),
    "e4m3row": Format("E4m3Rows", 8, row_gain=True),
    "e4m3tile128": Format("E4m3Tiles", 8, 128, "f32", promoted=True),
    "e4m3tile128a8": Format("E4m3Tiles", 8, 128, "f32", promoted=True),
    "nvfp4": Format("Nvfp4", 4, 16, "e4m3", row_gain=True),
    "mxfp4": Format("Mxfp4", 4, 32, "e8m0"),
    "u8g64": _affine(8, 64),
    "u4g64": _affine(4, 64),
    "u4g32": _affine(4, 32),
    "u2g32": _affine(4, 32),  # a lane's share of 32 codes would be 2 bytes: they are stored as codes of 4 bits
    "u2g64": _affine(2, 64),
    "u2g128": _affine(2, 128),
}


class Tile(NamedTuple):
    """rows of w and of x in a tile, columns of a step for codes of 16 and of fewer bits, steps under way, warps along w and along x."""

    outputs: int
    rows: int
    columns: int
    packed_columns: int
    stages: int
    warps_outputs: int
    warps_rows: int
    blocks: int  # on a multiprocessor, wanted


# By the number of rows, the first that is wide enough. Up to 16 rows all depends on how fast weights arrive: many bytes under way.
TILES = (
    Tile(64, 8, 64, 128, 5, 2, 1, 4),
    Tile(64, 16, 64, 128, 5, 2, 1, 4),
    Tile(64, 32, 64, 64, 4, 2, 1, 3),
    Tile(128, 64, 64, 64, 4, 4, 2, 2),
    Tile(128, 128, 64, 64, 4, 2, 4, 1),
)
FEW_ROWS = 16
FEWEST_STAGES = 3  # with two, loading waits for multiplying
# Where sums are promoted or cut into slices, a thread holds them twice or three times: tiles of more rows would not fit its registers, but
# for sums of 8-bit products, whose operands need no decoding. Other architectures than these turn such operands into f16 for mma.sync.
MOST_ROWS_OF_TWO_SUMS = 64
PRODUCTS_OF_CODES = ("sm_89", "sm_120a")


@dataclass(frozen=True, slots=True)
class Cut:
    """A choice: the tile, its columns and stages, and how the contracted axis is cut: slices of `slice` columns, each by its own block
    (`splits` of them) or one after the other by one."""

    tile: Tile
    columns: int
    stages: int
    stage_bytes: int
    splits: int
    slice: int
    sliced: bool
    grid: tuple[int, int]


def instantiation(name: str, *arguments: str | int | bool) -> str:
    """A kernel's name as C++ writes it."""
    words = (str(argument).lower() if isinstance(argument, bool) else str(argument) for argument in arguments)
    return f"{name}<{', '.join(words)}>"


def activation_name(act: str | None) -> str:
    """An activation as prelude/activations.cuh calls it."""
    return act.upper() if act else "NO_ACTIVATION"


def format_of(dtype: Dtype) -> Format:
    """The format of the kernels for a weight dtype. KernelError (`kernel.unsupported`) for others."""
    if dtype.name not in FORMATS:
        expected = " ".join((*FORMATS, "f16", "f32"))  # of floats all, if not all here
        message = f"no matrix product takes weights of {dtype}"
        raise KernelError("kernel.unsupported", message, phase="plan", expected=expected, found=dtype.name)
    return FORMATS[dtype.name]


def multiplies_codes(dtype: Dtype, arch: str) -> bool:
    """Whether the tensor cores multiply the codes of activations and weights as they are: e4m3, from sm_89 on."""
    return dtype.act is not None and arch != "sm_80"


def cut(rows: int, outputs: int, width: int, dtype: Dtype, arch: str, *, batch_invariant: bool) -> Cut:
    """How the product of x `[rows, width]` and w `[outputs, width]` is cut. Of gated units, outputs counts gates and ups.

    With batch_invariant neither the slices nor the order within them depend on rows.
    """
    kernel = format_of(dtype)
    narrow = kernel.promoted and (batch_invariant or dtype.act is None or arch not in PRODUCTS_OF_CODES)
    room = SHARED[arch] - STATIC_SHARED

    def columns_of(tile: Tile) -> int:
        return RUN if dtype.act else tile.columns if kernel.code_bits == 16 else tile.packed_columns

    def bytes_of(tile: Tile) -> int:
        return stage_bytes(kernel, tile, columns_of(tile), codes_of_x=dtype.act is not None)

    fitting = [tile for tile in TILES if room // bytes_of(tile) >= FEWEST_STAGES and not (narrow and tile.rows > MOST_ROWS_OF_TWO_SUMS)]
    tile = next((tile for tile in fitting if rows <= tile.rows), fitting[-1])
    grid = _grid(tile, rows, outputs)
    size, splits = _slices(TILES[0] if batch_invariant else tile, _grid(TILES[0], 1, outputs) if batch_invariant else grid, width, arch)
    sliced = batch_invariant and splits > 1
    by_blocks = not sliced or rows <= FEW_ROWS
    stages = min(tile.stages, room // bytes_of(tile))
    of_two = min(stages, ((SHARED[arch] + RESERVED_SHARED) // 2 - RESERVED_SHARED - STATIC_SHARED) // bytes_of(tile))
    if tile.blocks > 1 and of_two >= FEWEST_STAGES:  # two shorter rings hold more than one, and have twice the warps
        stages = of_two
    return Cut(tile, columns_of(tile), stages, bytes_of(tile), splits if by_blocks else 1, size, sliced and not by_blocks, grid)


def stage_bytes(kernel: Format, tile: Tile, columns: int, *, codes_of_x: bool) -> int:
    """Shared memory of one step of the ring."""
    gains = (
        max(1, columns // kernel.group) * tile.outputs * {"u8": 1, "e4m3": 1, "e8m0": 1, "bf16": 2, "f32": 4}[kernel.gain]
        if kernel.group
        else 0
    )
    x = tile.rows * (columns + columns // RUN * 4 if codes_of_x else 2 * columns)
    return tile.outputs * columns * kernel.code_bits // 8 + x + gains * (2 if kernel.has_offset else 1)


def _grid(tile: Tile, rows: int, outputs: int) -> tuple[int, int]:
    return -(-outputs // tile.outputs), -(-rows // tile.rows)


def _slices(tile: Tile, grid: tuple[int, int], width: int, arch: str) -> tuple[int, int]:
    """Columns of a slice and how many slices: enough blocks for the device, none too short."""
    blocks = grid[0] * grid[1]
    wanted = min(BLOCKS[arch] * tile.blocks // blocks, width // SMALLEST_SLICE) if blocks <= COUNTERS else 1
    size = -(-width // (SLICE * max(1, wanted))) * SLICE
    return size, -(-width // size)
