"""Hypothesis strategies: terms, shapes that fit them, and weights by seed."""

import math

import numpy as np
from hypothesis import strategies as st

from poem.dtypes import Dtype
from poem.dtypes.leaves import STORAGE
from poem.dtypes.term import CODES, LEAF_BITS, Group, Grouped, Leaf, Term

GAINS = ("f32", "f16", "bf16", "e8m0", "e4m3")
OFFSETS = ("f32", "bf16", "u8", "e4m3")


def groups() -> st.SearchStrategy[Group]:
    sizes = st.sampled_from([1, 2, 4, 6, 16])
    return st.one_of(
        st.builds(lambda size: Group("run", 1, size), sizes),
        st.builds(lambda rows, size: Group("tile", rows, size), st.sampled_from([2, 3]), sizes),
        st.just(Group("row")),
        st.just(Group("tensor")),
    )


@st.composite
def terms(draw: st.DrawFn, depth: int = 3, leaves: tuple[str, ...] = tuple(LEAF_BITS)) -> Term:
    """Any term nested at most `depth` deep."""
    if depth == 1 or draw(st.booleans()):
        return Leaf(draw(st.sampled_from(leaves)))
    gain = draw(terms(depth - 1, GAINS))
    tail = draw(st.sampled_from(["n", "n", "b", "z"]))
    offset = draw(terms(depth - 1, OFFSETS)) if tail != "n" else None
    return Grouped(draw(groups()), draw(st.sampled_from(CODES)), gain, tail, offset)


@st.composite
def shapes(draw: st.DrawFn, dtype: Dtype, most: int = 40) -> tuple[int, ...]:
    """A shape that the dtype takes: rank 2 to 4, with partial tiles where they are allowed."""
    lead = draw(st.lists(st.integers(1, 3), max_size=2))
    rows = draw(st.integers(1, 7))
    term = dtype.term
    step = 1
    if isinstance(term, Grouped):
        step = max(1, 8 // LEAF_BITS[term.code])
        step = dtype.quantum[1] if term.group.kind == "run" else step
    columns = step * draw(st.integers(1, max(1, most // step)))
    return (*lead, rows, columns)


def fits(dtype: Dtype, shape: tuple[int, ...]) -> bool:
    try:
        dtype.planes(shape)
    except ValueError:
        return False
    return math.prod(shape) > 0


def weight(shape: tuple[int, ...], seed: int, flavour: str = "normal") -> np.ndarray:
    """A float32 weight. Flavours: normal; positive; small integers; outliers; tiny; one repeated value."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape).astype(np.float32)
    if flavour == "positive":
        return np.abs(values)
    if flavour == "integers":
        return np.rint(values * 4).astype(np.float32)
    if flavour == "outliers":
        return (values * np.where(random.random(shape) < 0.05, 1000, 1)).astype(np.float32)
    if flavour == "tiny":
        return (values * 2.0**-130).astype(np.float32)
    if flavour == "constant":
        return np.full(shape, values.reshape(-1)[0], np.float32)
    return values


FLAVOURS = ("normal", "positive", "integers", "outliers", "tiny", "constant")


def planes(dtype: Dtype, shape: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    """Planes of random codes and moderate factors for a dtype, as a file may hold them."""
    random = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for plane in dtype.planes(shape):
        storage = STORAGE[plane.leaf]
        if storage == np.uint8 or LEAF_BITS[plane.leaf] == 8:
            found[plane.path] = np.asarray(random.integers(0, 2 if plane.leaf == "bool" else 256, plane.packed_shape), np.uint8).view(
                storage
            )
        else:
            found[plane.path] = np.asarray(random.standard_normal(plane.packed_shape) * 8).astype(storage)
    return found
