"""Examples of the rotations and blends of whole rows of ops.elemwise, and of its tables of biases."""

import numpy as np

from conformance.strategies.build import Build
from conformance.strategies.elemwise import FLOATS
from conformance.strategies.record import strategy


@strategy("elemwise.hadamard", dtypes=FLOATS)
def hadamard(b: Build) -> None:
    block = b.pick(16, 1, 2, 8, 64, 128, 1024)
    length = b.pick(None, 3, 64)
    signs = None if length is None else b.given_weight(b.random.choice([-1.0, 1.0], length).astype(np.float32), "f32")
    b.call("elemwise.hadamard", b.value(block * b.pick(1, 3)), block, signs)


@strategy("elemwise.relative_bucket_bias", exact=True)
def relative_bucket_bias(b: Build) -> None:
    heads, bidirectional = b.pick(2, 1, 12), b.pick(True, False)
    buckets, furthest = b.pick((8, 16), (4, 5), (32, 128))
    table = b.weight(buckets, heads, dtype=b.dtype)
    b.call("elemwise.relative_bucket_bias", b.trace.handle, table, b.pick(7, 1, 200), buckets, furthest, bidirectional)


@strategy("elemwise.res_blend", dtypes=FLOATS)
def res_blend(b: Build) -> None:
    width = b.pick(8, 1, 5, 96, 1001)
    blocks = [b.value(width) for _ in range(b.pick(1, 0, 2, 9))]
    b.call(
        "elemwise.res_blend", b.value(width), blocks, b.gain(width), b.pick(1e-6, 1e-5), b.weight(width, dtype=b.dtype),
        b.pick(1.0, 0.3), b.pick("raw", "normed"),
    )  # fmt: skip
