"""What kernels add to the bound of an op: errors of tensor cores that float32 arithmetic does not make, as each kernel states them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from conformance.bounds import Cells
from conformance.running import Running
from cupy_backend.kernels.attn import WEIGHT_ERROR, WEIGHT_FLOOR
from poem.dtypes import Dtype
from poem.graph import Graph, Node, Ref

# Tensor cores that multiply 8-bit floats cut each of 32 products and the sum before them to 13 bits below the largest of these, four
# times within a run of 128 columns; sums of runs are float32.
FP8_CUTS, FP8_CUT = 4 * 33, 2.0**-13
FP8_KERNELS = (", e4m3, e4m3, ", "product_by_warpgroups<e4m3, ")  # in the names of the instantiations that do so


def kernel_error(
    graph: Graph, node: Node, kernels: Sequence[str], given: Mapping[str, Any], *, deviations: float = 0.0
) -> np.ndarray | float:  # fmt: skip
    """How far the first result of a node may be from its bound's on account of the kernels that make it, broadcastable to the result.

    given: the node's operands and attributes by name, as `Operands.of` returns them. deviations: of a sum of errors, as in `Arithmetic`;
    0 adds up the largest ones.
    """
    if not kernels:
        return 0.0
    if node.op in ("attn.attend", "attn.prefill") and isinstance(given["cache"], Cells):
        return _attend(graph, node, given)
    if node.op in ("linear.matmul", "linear.lm_head") and any(name in kernel for name in FP8_KERNELS for kernel in kernels):
        cuts = deviations * math.sqrt(FP8_CUTS) if deviations else FP8_CUTS
        return cuts * FP8_CUT * _sum_of_magnitudes(graph, node, given)
    return 0.0


def takes_infinity_for_nan(graph: Graph, node: Node, kernels: Sequence[str]) -> bool:
    """Whether the kernels of a product may give NaN where its result is infinite.

    Products whose weights have offsets take those out of the sum, x (gain code + offset) = gain (x code) + offset x: an infinite x then
    meets itself with the other sign.
    """
    weight = node.operands.get("w")
    if not kernels or not isinstance(weight, Ref) or weight.kind != "param" or not node.op.startswith("linear."):
        return False
    return any(plane.path == "offset" for plane in Dtype(graph.params[weight.id].dtype).planes(graph.params[weight.id].shape))


def _attend(graph: Graph, node: Node, given: Mapping[str, Any]) -> np.ndarray:
    """Weights reach the tensor cores as two numbers, off by WEIGHT_ERROR of themselves, and by WEIGHT_FLOOR: so much of the largest |v|."""
    planes = [np.abs(_values(lane[-1])) for lane in given["cache"].lanes]
    finite = np.concatenate([np.where(np.isfinite(v), v, 0.0) for v in planes])
    largest = finite.max(0, initial=0.0)  # [key heads * value width]
    kv_heads, type = node.attributes["kv_heads"], graph.values[node.results[0]].type
    assert type is not None
    by_head = np.repeat(largest.reshape(kv_heads, -1), type.width // len(largest), axis=0)
    return (WEIGHT_ERROR[type.dtype] + WEIGHT_FLOOR[type.dtype] * max(map(len, planes))) * by_head.reshape(-1)


def _sum_of_magnitudes(graph: Graph, node: Node, given: Mapping[str, Any]) -> np.ndarray:
    weight = node.operands["w"]
    assert isinstance(weight, Ref)
    assert Dtype(graph.params[weight.id].dtype).act == "a8"
    return np.abs(_values(given["x"])) @ np.abs(given["w"]).T.astype(np.float64)


def _values(operand: np.ndarray | Running) -> np.ndarray:
    """The largest magnitude that an operand may have."""
    return np.abs(operand.value) + operand.error if isinstance(operand, Running) else operand
