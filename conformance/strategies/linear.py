"""Examples of ops.linear."""

from conformance.strategies.build import Build
from conformance.strategies.record import QUANTISED, strategy
from poem.dtypes import Dtype

FLOATS = ("bf16", "f32", "f16")
# Widths that the kernels' tiles meet whole and in part; groups and tiles of quantised weights divide them.
INNER = (128, 64, 192, 1024, 1088)
OUTER = (16, 8, 24, 136, 5, 1)


@strategy("linear.matmul", dtypes=("bf16", "f32"), weights=("", *QUANTISED), exact=("", *QUANTISED[:-1]))
def matmul(b: Build) -> None:
    k = b.pick(*INNER) if b.weights else b.pick(*INNER, 1040, 40)
    b.call("linear.matmul", b.value(k), b.weight(b.pick(*OUTER), k, dtype=b.weights or b.dtype), out=b.pick(None, Dtype("f32")))
