"""Examples of the ops of ops.elemwise on several residual streams."""

from conformance.strategies.build import Build
from conformance.strategies.elemwise import FLOATS, not_huge
from conformance.strategies.norms import epsilon
from conformance.strategies.record import strategy
from poem.ops.operands import Value

STREAMS = (2, 1, 3, 4)
WIDTHS = (8, 1, 5, 96, 1001)


def _mixes(b: Build, width: int) -> Value:
    """Logits in f32, which a projection of normed streams gives."""
    return b.value(width, dtype="f32", scale=not_huge(b))


@strategy("elemwise.hc_expand", dtypes=FLOATS, exact=True)
def hc_expand(b: Build) -> None:
    b.call("elemwise.hc_expand", b.value(b.pick(*WIDTHS)), b.pick(*STREAMS))


@strategy("elemwise.hc_rmsnorm_f32", dtypes=FLOATS)
def hc_rmsnorm_f32(b: Build) -> None:
    b.call("elemwise.hc_rmsnorm_f32", b.value(b.pick(*STREAMS) * b.pick(*WIDTHS)), epsilon(b))


@strategy("elemwise.hc_project", exact=True)
def hc_project(b: Build) -> None:
    streams, width = b.pick(*STREAMS), b.pick(*WIDTHS)
    outer = b.pick(2 * streams + streams**2, streams)
    b.call("elemwise.hc_project", b.value(streams * width, dtype="f32"), b.weight(outer, streams * width, dtype=b.dtype), streams)


@strategy("elemwise.hc_gates", dtypes=FLOATS)
def hc_gates(b: Build) -> None:
    streams, width = b.pick(*STREAMS), b.pick(*WIDTHS)
    mixed = 2 * streams + streams**2
    b.call(
        "elemwise.hc_gates", _mixes(b, mixed), b.value(streams * width), b.gain(3), b.gain(mixed), streams, b.pick(1e-6, 1e-3),
        b.pick(2.0, 0.3), b.pick(1, 2, 3, 20),
    )  # fmt: skip


@strategy("elemwise.hc_fold", dtypes=FLOATS, exact=True)
def hc_fold(b: Build) -> None:
    streams, width = b.pick(*STREAMS), b.pick(*WIDTHS)
    gates = [b.value(count, dtype="f32") for count in (streams, streams**2)]
    b.call("elemwise.hc_fold", b.value(width), b.value(streams * width), *gates)


@strategy("elemwise.hc_collapse", dtypes=FLOATS)
def hc_collapse(b: Build) -> None:
    streams, width = b.pick(*STREAMS), b.pick(*WIDTHS)
    b.call("elemwise.hc_collapse", _mixes(b, streams), b.value(streams * width), b.gain(1), b.gain(streams), streams, b.pick(1e-6, 1e-3))


@strategy("elemwise.hc_mean", dtypes=FLOATS)
def hc_mean(b: Build) -> None:
    streams = b.pick(*STREAMS)
    b.call("elemwise.hc_mean", b.value(streams * b.pick(*WIDTHS)), streams)


@strategy("elemwise.hc_mix", dtypes=FLOATS)
def hc_mix(b: Build) -> None:
    streams, width = b.pick(*STREAMS), b.pick(*WIDTHS)
    b.call("elemwise.hc_mix", b.value(streams * width), b.value(streams * width), streams)


@strategy("elemwise.hc_inject", dtypes=FLOATS)
def hc_inject(b: Build) -> None:
    streams, width = b.pick(*STREAMS), b.pick(*WIDTHS)
    b.call("elemwise.hc_inject", b.value(width), b.value(streams), streams, b.value(streams * width))


@strategy("elemwise.ple_gate", dtypes=FLOATS)
def ple_gate(b: Build) -> None:
    streams, width = b.pick(*STREAMS), b.pick(*WIDTHS)
    b.call("elemwise.ple_gate", b.value(streams * width), b.value(streams * width), b.value(width), streams)
