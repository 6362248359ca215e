"""Examples of ops.elemwise: arithmetic, activations and gates.

Norms are in norms.py, rotary embeddings in rotary.py, streams in hyper_connections.py, blends in mixing.py.
"""

from conformance.strategies.build import HUGE, Build
from conformance.strategies.record import alike, strategy
from poem.dtypes import Dtype
from poem.graph import ValueType
from poem.ops.operands import Value

FLOATS = ("bf16", "f32", "f16")
# Whole vectors and parts of one, less than a warp, and several vectors for each thread of a block.
WIDTHS = (8, 1, 5, 96, 100, 1001, 4104)
SECOND_TURN = 503  # with the most rows of a pass, more elements than the grid of any device has threads
# Numbers that every float dtype holds, that f32 alone holds nearly, and one whose product rounds twice in bf16.
NUMBERS = (0.5, -2.0, 0.3, 73.321211)
AXES: tuple[str | int, ...] = ("tokens", 5)
TABLES: tuple[str | int, ...] = ("tokens", "lanes", 3)


def not_huge(b: Build) -> float:
    """Scales operands of which the op takes an exponential, or more products than float32 has room for, where all else is huge."""
    return 1.0 / HUGE if b.flavour == "huge" else 1.0


@alike("elemwise.add", "elemwise.mul", dtypes=FLOATS, exact=True)
def two(b: Build, op: str) -> None:
    width, axis = b.pick(*WIDTHS), b.pick(*AXES)
    b.call(op, b.value(width, axis), b.value(width, axis))


@strategy("elemwise.residual_add", dtypes=FLOATS, exact=True)
def residual_add(b: Build) -> None:
    width = b.pick(*WIDTHS)
    b.call("elemwise.residual_add", b.value(width, dtype=b.pick(b.dtype, "f32")), b.value(width))


@strategy("elemwise.gated_residual_add", dtypes=FLOATS, exact=True)
def gated_residual_add(b: Build) -> None:
    width = b.pick(*WIDTHS)
    gate, lanes = _table(b, width)
    b.call("elemwise.gated_residual_add", b.value(width), gate, b.value(width), lanes)


@strategy("elemwise.modulate", dtypes=FLOATS)
def modulate(b: Build) -> None:
    width, form = b.pick(*WIDTHS), b.pick("scale_shift", "scale", "tanh_gate")
    table, lanes = _table(b, 2 * width if form == "scale_shift" else width)
    b.call("elemwise.modulate", b.value(width), table, lanes, form)


def _table(b: Build, width: int) -> tuple[Value, Value | None]:
    """Values for each row; or rows of lanes, or of a table, and which of them each row takes."""
    axis, lanes = b.pick(*TABLES), None
    if axis == "lanes":
        lanes = b.trace.input("request_of_token", ValueType("tokens", 1, "i32"))
    elif isinstance(axis, int):
        lanes = b.ids(axis)
    return b.value(width, axis, b.pick(b.dtype, "f32")), lanes


@alike("elemwise.mul_scalar", "elemwise.silu_scaled", dtypes=FLOATS)
def by_number(b: Build, op: str) -> None:
    b.call(op, b.pick(*NUMBERS), b.value(b.pick(*WIDTHS)))


@strategy("elemwise.scale", dtypes=FLOATS, exact=True)
def scale(b: Build) -> None:
    b.call("elemwise.scale", b.gain(1), b.value(b.pick(*WIDTHS)))


@strategy("elemwise.clamp", dtypes=FLOATS)
def clamp(b: Build) -> None:
    lo, hi = b.pick((-1.0, 1.5), (-0.3, 0.7), (0.5, 0.5), (-1e30, 2.0**-70))
    b.call("elemwise.clamp", b.value(b.pick(*WIDTHS)), lo, hi)


@strategy("elemwise.clamp_learned", dtypes=FLOATS, exact=True)
def clamp_learned(b: Build) -> None:
    x = b.value(b.pick(*WIDTHS))
    b.call("elemwise.clamp_learned", x, b.gain(1), b.gain(1))


@strategy("elemwise.copy", dtypes=FLOATS, exact=True)
def copy(b: Build) -> None:
    width = b.pick(*WIDTHS)
    b.call("elemwise.copy", b.value(width) if b.pick(True, False) else b.ids(1000, width, -1000))


@strategy("elemwise.cast", dtypes=FLOATS, exact=True)
def cast(b: Build) -> None:
    b.call("elemwise.cast", b.value(b.pick(*WIDTHS)), Dtype(b.pick(*FLOATS)))


@strategy("elemwise.add_bias", dtypes=FLOATS, exact=True)
def add_bias(b: Build) -> None:
    width = SECOND_TURN if b.many_rows() else b.pick(*WIDTHS)
    b.call("elemwise.add_bias", b.gain(width), b.value(width))


@strategy("elemwise.standardize", dtypes=FLOATS, exact=True)
def standardize(b: Build) -> None:
    width = b.pick(*WIDTHS)
    b.call("elemwise.standardize", b.value(width), b.gain(width), b.gain(width))


@strategy("elemwise.gate_sigmoid_mul", dtypes=FLOATS)
def gate_sigmoid_mul(b: Build) -> None:
    width = b.pick(*WIDTHS)
    b.call("elemwise.gate_sigmoid_mul", b.value(width), b.value(width, dtype=b.pick(b.dtype, "f32")))


@strategy("elemwise.gate_sigmoid_mul_heads", dtypes=FLOATS)
def gate_sigmoid_mul_heads(b: Build) -> None:
    heads, head_dim = b.pick(2, 1, 5, 16), b.pick(8, 1, 5, 64, 128)
    gate = b.value(heads, dtype=b.pick(b.dtype, "f32"))
    b.call("elemwise.gate_sigmoid_mul_heads", b.value(heads * head_dim), gate, head_dim, b.pick(2.0, 0.3))


@alike("elemwise.silu", "elemwise.tanh", dtypes=FLOATS)
def activation(b: Build, op: str) -> None:
    b.call(op, b.value(b.pick(*WIDTHS), scale=b.pick(1.0, 10.0)))


@alike("elemwise.relu", "elemwise.relu2", dtypes=FLOATS, exact=True)
def rectifier(b: Build, op: str) -> None:
    b.call(op, b.value(b.pick(*WIDTHS)))


@strategy("elemwise.gelu", dtypes=FLOATS)
def gelu(b: Build) -> None:
    b.call("elemwise.gelu", b.value(b.pick(*WIDTHS), scale=b.pick(1.0, 10.0)), b.pick(False, True))
