"""Examples of the norms of ops.elemwise, and of the patterns that add a residual before one and round one to codes."""

from conformance.strategies.build import Build
from conformance.strategies.elemwise import FLOATS, not_huge
from conformance.strategies.record import alike, strategy
from poem.ops.operands import Value, Weight

EPSILONS = (1e-6, 1e-5, 1e-12)
HEADS = (2, 1, 5, 16)
WIDTHS = (8, 1, 5, 96, 100, 1001, 4104, 2049)  # of the last one no thread keeps its own: packs of one element, and too many
HEAD_DIMS = (64, 1, 5, 8, 48, 128, 256, 1001)


def epsilon(b: Build) -> float:
    """None too, but where squares leave float32 by the lower end: 0 by 0 is then another result than that of the formula."""
    return b.pick(*EPSILONS) if b.flavour == "tiny" else b.pick(*EPSILONS, 0.0)


@alike("elemwise.rmsnorm", "elemwise.rmsnorm_plus_one", dtypes=FLOATS)
def rmsnorm(b: Build, op: str) -> None:
    width = b.pick(*WIDTHS)
    b.call(op, b.value(width), b.gain(width), epsilon(b))


@alike("elemwise.rmsnorm_per_head", "elemwise.rmsnorm_per_head_plus_one", dtypes=FLOATS)
def rmsnorm_per_head(b: Build, op: str) -> None:
    heads, head_dim = b.pick(*HEADS), b.pick(*HEAD_DIMS)
    b.call(op, b.value(heads * head_dim), b.gain(head_dim), head_dim, epsilon(b))


@strategy("elemwise.rmsnorm_no_scale", dtypes=FLOATS)
def rmsnorm_no_scale(b: Build) -> None:
    heads, head_dim = b.pick(*HEADS), b.pick(*HEAD_DIMS)
    b.call("elemwise.rmsnorm_no_scale", b.value(heads * head_dim), head_dim, epsilon(b))


@strategy("elemwise.rmsnorm_grouped_plus_one", dtypes=FLOATS)
def rmsnorm_grouped_plus_one(b: Build) -> None:
    groups, group = b.pick(*HEADS), b.pick(*HEAD_DIMS)
    b.call("elemwise.rmsnorm_grouped_plus_one", b.value(groups * group), b.gain(groups * group), group, epsilon(b))


@strategy("elemwise.rmsnorm_gated", dtypes=FLOATS)
def rmsnorm_gated(b: Build) -> None:
    heads, head_dim = b.pick(*HEADS), b.pick(*HEAD_DIMS)
    width = heads * head_dim
    x, gate, gain = b.value(width, dtype=b.pick(b.dtype, "f32")), b.value(width, scale=not_huge(b)), b.gain(b.pick(head_dim, width))
    b.call("elemwise.rmsnorm_gated", x, gate, gain, head_dim, b.pick(*EPSILONS), b.pick("silu", "sigmoid"), b.pick(False, True))


@strategy("elemwise.rmsnorm_gated_by", dtypes=FLOATS)
def rmsnorm_gated_by(b: Build) -> None:
    heads, head_dim = b.pick(*HEADS), b.pick(*HEAD_DIMS)
    width = heads * head_dim
    x, gate, gain = b.value(width, dtype=b.pick(b.dtype, "f32")), b.value(width), b.gain(b.pick(head_dim, width))
    b.call("elemwise.rmsnorm_gated_by", x, gate, gain, heads, b.pick(*EPSILONS))


@strategy("elemwise.layernorm", dtypes=FLOATS)
def layernorm(b: Build) -> None:
    width = b.pick(*WIDTHS)
    w, bias = (b.gain(width) if b.pick(True, False) else None for _ in range(2))
    b.call("elemwise.layernorm", b.value(width), w, bias, epsilon(b))


@strategy("elemwise.layernorm_no_scale", dtypes=FLOATS)
def layernorm_no_scale(b: Build) -> None:
    b.call("elemwise.layernorm_no_scale", b.value(b.pick(*WIDTHS)), epsilon(b))


@strategy("add_rmsnorm", dtypes=FLOATS)
def add_rmsnorm(b: Build) -> None:
    """A block's result joins the residual stream, which is read again after the norm, or no more."""
    width = b.pick(*WIDTHS)
    stream = b.call("elemwise.add_bias", b.gain(width), b.value(width))
    stream = b.call("elemwise.residual_add", b.value(width), stream)
    norm = b.pick("elemwise.rmsnorm", "elemwise.rmsnorm_plus_one")
    normed = b.call(norm, stream, b.gain(width), epsilon(b))
    if b.pick(False, True):
        b.call("elemwise.residual_add", normed, stream)


CODED_WIDTHS = (128, 64, 1040, 2064)
NORMED_WIDTHS = (*CODED_WIDTHS, 16400)  # of so many columns no thread keeps its own


@strategy("rmsnorm_codes", dtypes=("bf16",), weights=("e4m3tile128a8",))
def rmsnorm_codes(b: Build) -> None:
    """A norm that only products read which take its codes."""
    width = b.pick(*NORMED_WIDTHS)
    _multiplied(b, b.call(b.pick("elemwise.rmsnorm", "elemwise.rmsnorm_plus_one"), b.value(width), _any_gain(b, width), epsilon(b)))


@strategy("add_rmsnorm_codes", dtypes=("bf16",), weights=("e4m3tile128a8",))
def add_rmsnorm_codes(b: Build) -> None:
    width = b.pick(*NORMED_WIDTHS)
    stream = b.call("elemwise.add_bias", b.gain(width), b.value(width))
    stream = b.call("elemwise.residual_add", b.value(width), stream)
    _multiplied(b, b.call(b.pick("elemwise.rmsnorm", "elemwise.rmsnorm_plus_one"), stream, _any_gain(b, width), epsilon(b)))


def _any_gain(b: Build, width: int) -> Weight:
    """Gains of the flavour, not near one: else codes by a scale of one would do as well."""
    return b.weight(width, dtype=b.dtype)


@strategy("elementwise_codes", dtypes=("bf16",), weights=("e4m3tile128a8",))
def elementwise_codes(b: Build) -> None:
    """A result that only products read which take its codes: a gated unit with a limit, an activation, a gate."""
    width, op = b.pick(*CODED_WIDTHS), b.pick("linear.glu", "elemwise.gelu", "elemwise.relu2", "elemwise.gate_sigmoid_mul")
    if op == "linear.glu":
        made = b.call(op, b.value(2 * width), width, limit=b.pick(0.5, None))
    else:
        made = b.call(op, *(b.value(width) for _ in range(2 if op == "elemwise.gate_sigmoid_mul" else 1)))
    _multiplied(b, made)


def _multiplied(b: Build, normed: Value) -> None:
    """One product of the norm, or two."""
    for outer in b.pick((16,), (136, 5)):
        b.call("linear.matmul", normed, b.weight(outer, normed.width))
