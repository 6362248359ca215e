"""Examples of the rotary and sinusoidal position embeddings of ops.elemwise."""

from typing import Any

from conformance.strategies.build import Build
from conformance.strategies.elemwise import FLOATS
from conformance.strategies.record import strategy
from poem.ops import scaling
from poem.ops.operands import Scaling, Value

BY_SECTIONS = ("mrope_blocked", "mrope_split")  # sections say what turns, so that nothing else does
FORMS = ("half", "interleaved", "proportional", "mrope_interleaved", "mrope_chunked", *BY_SECTIONS)
HEADS = ((2, 1), (1, 1), (8, 2), (5, 3))  # of q, of k
WIDE = 520  # more pairs, and with several heads more vectors of channels, than a block has threads
FURTHEST = 5000  # position
ORIGINAL = 4  # positions that scalings were trained for: batches have shorter and longer sequences


@strategy("elemwise.rope", dtypes=FLOATS)
def rope(b: Build) -> None:
    (heads, kv_heads), form = b.pick(*HEADS), b.pick(*FORMS)
    head_dim, rotary = head_of(b, form)
    q = b.value(heads * head_dim)
    turned(b, q, b.value(kv_heads * head_dim) if b.pick(True, False) else None, head_dim, rotary, form)


def head_of(b: Build, form: str) -> tuple[int, int | None]:
    """How wide heads are that turn by a form, and how many of their channels do, where the form does not say."""
    if form in BY_SECTIONS:
        return b.pick(64, 8, 128, 10, WIDE), None
    head_dim = b.pick(64, 8, 128, 10, 9, WIDE)
    return head_dim, b.pick(4, 8) if head_dim % 2 else b.pick(None, 4, 8)


def turned(b: Build, q: Value, k: Value | None, head_dim: int, rotary: int | None, form: str) -> Any:
    """q, and k if there is one, turned, with options of the form."""
    pairs, by_sections = (rotary or head_dim) // 2, form in BY_SECTIONS
    return b.call(
        "elemwise.rope", q, k, _positions(b, 3 if form.startswith("mrope") else 1), head_dim, b.pick(10000.0, 100.0, 5000000.0), rotary,
        form, b.pick("first", "last") if form in ("half", "interleaved") else "first",
        None if by_sections else _linear(b) if form == "proportional" else _scaling(b, pairs),
        b.pick(*_sections(pairs, whole=not by_sections)) if form.startswith("mrope") else None, b.pick(False, True),
    )  # fmt: skip


def _positions(b: Build, columns: int) -> Value:
    """Those of a text, or any."""
    return b.positions() if columns == 1 and b.pick(True, False) else b.ids(FURTHEST, columns)


def _sections(pairs: int, whole: bool) -> list[list[int]]:
    """Pairs for each of three position columns: all of them, or fewer."""
    third = pairs // 3
    return [[pairs - 2 * third, third, third], [pairs - pairs // 2, pairs // 2, 0]] + ([] if whole else [[0, pairs // 2, pairs // 2]])


def _linear(b: Build) -> Scaling | None:
    return b.pick(None, scaling.linear(4.0))


def _scaling(b: Build, pairs: int) -> Scaling | None:
    short, long = ([step * (1.0 + 0.5 * pair) for pair in range(pairs)] for step in (1.0, 1.3))
    return b.pick(
        None, scaling.linear(3.0), scaling.llama3(8.0, 1.0, 4.0, 64),
        scaling.yarn(factor=4.0, original_max_position=64, beta_fast=8.0, attention_factor=1.25),
        scaling.yarn(factor=4.0, original_max_position=64, truncate=False),
        *(scaling.longrope(short, long, ORIGINAL, 1.25, use) for use in ("short", "long", "auto")),
    )  # fmt: skip


@strategy("elemwise.rope_axes", dtypes=FLOATS)
def rope_axes(b: Build) -> None:
    """Positions are fractions, some negative. dims are one for each axis, or four padded with 0."""
    form = b.pick("interleaved", "split", "neox", "split_ladder")
    if form == "split_ladder":
        heads, head_dim, dims = b.pick((2, 8, (4, 4)), (2, 8, (4, 4, 4)), (1, 4, (2, 2)), (4, 32, (40, 40, 40)), (3, 64, (192,)))
        rotary = head_dim
    else:
        heads, head_dim, dims = b.pick((2, 8, (4, 4)), (1, 64, (64,)), (2, 16, (4, 6, 2)), (3, 18, (2, 4, 6, 4)), (5, 128, (32, 32, 32)))
        rotary = sum(dims)
    axes = len(dims)
    padding = [0] * (b.pick(0, 4 - axes) if axes < 4 else 0)
    positions = b.floats(lambda rows: b.random.uniform(-50.0, 50.0, (rows, axes)), axes, dtype="f32")
    thetas = [100.0, 3.0, 2000.0, 7.0][:axes]
    b.call("elemwise.rope_axes", b.value(heads * head_dim), positions, [*dims, *padding], [*thetas, *padding], form, rotary, head_dim)


@strategy("elemwise.sinusoid", dtypes=("f32",))
def sinusoid(b: Build) -> None:
    t = b.floats(lambda rows: b.random.uniform(0.0, 1000.0, rows), 1, b.pick("tokens", "lanes"), dtype="f32")
    b.call("elemwise.sinusoid", t, b.pick(8, 2, 10, 320), b.pick(10000.0, 100.0), b.pick(True, False), b.pick(1.0, 0.3, 1000.0))
