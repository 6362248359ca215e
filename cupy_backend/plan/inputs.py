"""The integers of a pass in device memory: which there are, how large, and how a pass fills them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from cupy_backend.kernels.attn import row_tiles
from cupy_backend.launch import Array
from cupy_backend.plan.arena import aligned
from cupy_backend.plan.record import Bucket, WorkList
from poem.batch import NO_PAGE, Geometry

BUFFER = "inputs"
# Graph inputs by their method; the other arrays are for kernels that take the `inputs` handle or a cache.
OF_A_SPACE = ("write_page", "write_offset", "last_page_len", "kv_indptr")


def layout(bucket: Bucket, spaces: int) -> dict[str, Array]:
    """All arrays by name, each i32. Those of a kv space end in its number: `write_page.0`."""
    shapes: dict[str, tuple[int, ...]] = {
        "tokens": (bucket.rows,),
        "positions": (bucket.rows,),
        "lane_of_row": (bucket.rows,),
        "mrope_positions": (bucket.rows, 3),
        "readout_rows": (bucket.readouts,),
        "qo_indptr": (bucket.lanes + 1,),
        "kv_len": (bucket.lanes,),
        "counts": (3,),
    }
    pages = bucket.lanes * -(-bucket.cells // bucket.page_size)
    for space in range(spaces):
        shapes |= {
            f"write_page.{space}": (bucket.rows,),
            f"write_offset.{space}": (bucket.rows,),
            f"last_page_len.{space}": (bucket.lanes,),
            f"kv_indptr.{space}": (bucket.lanes + 1,),
            f"kv_indices.{space}": (pages,),
        }
    arrays: dict[str, Array] = {}
    for name, shape in shapes.items():
        add(arrays, name, shape)
    return arrays


def add(arrays: dict[str, Array], name: str, shape: tuple[int, ...]) -> None:
    """One more array behind the others."""
    arrays[name] = Array(BUFFER, "read", shape, "i32", nbytes(arrays))


def nbytes(arrays: Mapping[str, Array]) -> int:
    """Bytes of the buffer `inputs`."""
    return max((aligned(array.offset + array.nbytes) for array in arrays.values()), default=0)


def fill(arrays: Mapping[str, Array], lists: Sequence[WorkList], pass_: Geometry) -> np.ndarray:
    """The bytes of `inputs` for a pass that is at most as large as the bucket.

    Rows past those of the pass are no lane's: their token and position are 0, their lane is -1, their cell is on page `NO_PAGE`.
    Lanes past those of the pass have no rows and no cells. `counts` holds the true rows, lanes and readouts.
    """
    buffer: np.ndarray = np.zeros(nbytes(arrays), np.uint8)
    for name, values in chain(_values(pass_), _masks(pass_) if "mask" in arrays else (), _work(lists, pass_)):
        array = arrays[name]
        view = buffer[array.offset : array.offset + array.nbytes].view(np.int32).reshape(array.shape)
        if name.startswith("write_page"):
            view[...] = NO_PAGE
        elif name == "lane_of_row":
            view[...] = -1
        elif name.partition(".")[0] in ("qo_indptr", "kv_indptr", "mask_indptr"):
            view[...] = values[-1]
        view[: len(values)] = values
    return buffer


def _values(pass_: Geometry) -> Iterator[tuple[str, np.ndarray]]:
    for name in ("tokens", "positions", "lane_of_row", "mrope_positions", "readout_rows", "qo_indptr", "kv_len"):
        yield name, getattr(pass_, name)
    yield "counts", np.array([pass_.rows, pass_.lanes, len(pass_.readout_rows)], np.int32)
    for space, pages in enumerate(pass_.pages):
        yield f"write_page.{space}", pages.write_page
        yield f"write_offset.{space}", pages.write_offset
        yield f"last_page_len.{space}", pages.last_page_len
        yield f"kv_indptr.{space}", pages.indptr
        yield f"kv_indices.{space}", pages.indices


def _masks(pass_: Geometry) -> Iterator[tuple[str, np.ndarray]]:
    bits, bounds = pass_.packed_masks
    yield "mask", np.pad(bits, (0, -len(bits) % 4)).view(np.int32)
    yield "mask_indptr", bounds


def _work(lists: Sequence[WorkList], pass_: Geometry) -> Iterator[tuple[str, np.ndarray]]:
    counts = np.diff(pass_.qo_indptr)
    for item in lists:
        yield item.name, row_tiles(counts, pass_.kv_len, item.group, item.shape, least=item.least, most=item.most, count=item.tiles)
