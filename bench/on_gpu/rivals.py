"""What torch takes for the same work: cuBLAS, cuBLASLt, cuDNN or FlashAttention behind its functions.

A rival reads the very operands that the kernel reads, where it can; then the two results are compared as well. Nothing here is imported
unless torch is there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bench.on_gpu.machine import Machine, Memory
from cupy_backend.launch import Array

Tensors = Mapping[str, Any]  # torch tensors by operand
Call = Callable[[], Any]  # returns a tensor


Make = Callable[[Any, Tensors, Mapping[str, int]], Call]
CLOSE = 2.0**-6  # how far results may be apart, in the Frobenius norm: both round to bf16, and add in another order
OF_CODES = 2.0**-4  # the same where the kernel rounds activations to e4m3 and torch does not


class Rival(NamedTuple):
    """name: what is called. make: of torch, the operands and the sizes, the call that is timed. exact: the call whose result the
    kernel's is compared with, and how close they must be; None where there is none."""

    name: str
    make: Make
    exact: Make | None = None
    close: float = CLOSE


def tensor(torch: Any, machine: Machine, memory: Memory, array: Array) -> Any:
    """An operand as a tensor that shares its memory."""
    flat = memory.reshape(-1).view(np.uint8)
    raw = torch.from_numpy(flat) if machine.torch_device() == "cpu" else torch.as_tensor(flat, device=machine.torch_device())
    dtypes = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "e4m3": torch.float8_e4m3fn, "i32": torch.int32}
    return raw.view(dtypes.get(array.dtype, torch.uint8)).reshape(array.shape if array.dtype in dtypes else -1)


def captured(torch: Any, machine: Machine, calls: Sequence[Call]) -> Callable[[], object]:
    """All these calls as one: a CUDA graph on a GPU."""

    def in_turn() -> None:
        for call in calls:
            call()

    in_turn()  # libraries choose their kernels and take their workspaces
    if machine.torch_device() == "cpu":
        return in_turn
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        in_turn()
    replay: Callable[[], object] = graph.replay
    return replay


# --------------------------------------------------------------------------------------------------------------------- the rivals
def _add_rmsnorm(torch: Any, given: Tensors, sizes: Mapping[str, int]) -> Call:
    x, residual, gain = given["x"], given["residual"], given["gain"]
    return lambda: torch.nn.functional.rms_norm(residual + x, gain.shape, gain, 1e-5)


def _glu(torch: Any, given: Tensors, sizes: Mapping[str, int]) -> Call:
    gate, up = given["x"].chunk(2, 1)
    return lambda: torch.nn.functional.silu(gate) * up


def _mm(torch: Any, given: Tensors, sizes: Mapping[str, int]) -> Call:
    x, w = given["x"], given["w.data"]
    return lambda: torch.mm(x, w.t())


def _scaled_mm(torch: Any, given: Tensors, sizes: Mapping[str, int]) -> Call:
    """One scale for each operand: less work than a scale for each 128 columns, and no activations to quantise."""
    x = given["x"].to(torch.float8_e4m3fn)
    w = given["w.code"].view(torch.float8_e4m3fn).reshape(-1, x.shape[1])
    one = torch.ones((), device=x.device)
    return lambda: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)


def _mm_of_bf16(torch: Any, given: Tensors, sizes: Mapping[str, int]) -> Call:
    """The product by a weight of the same shape in bf16, 16 bits for each element."""
    x = given["x"]
    w = torch.randn((given["out"].shape[1], x.shape[1]), device=x.device, dtype=torch.float32).to(torch.bfloat16)
    return lambda: torch.mm(x, w.t())


def _int4pack_mm(torch: Any, given: Tensors, sizes: Mapping[str, int]) -> Call:
    """4-bit weights with a scale and a zero point for each 64 columns, in the layout of torch's own kernel."""
    x, outputs = given["x"], given["out"].shape[1]
    codes = torch.randint(0, 255, (outputs, x.shape[1] // 2), device=x.device, dtype=torch.uint8)
    packed = torch._convert_weight_to_int4pack(codes, 8)
    scales = torch.rand((x.shape[1] // 64, outputs, 2), device=x.device, dtype=torch.float32).to(torch.bfloat16)
    return lambda: torch._weight_int4pack_mm(x, packed, 64, scales)


def attention_of(*, decode: bool) -> Callable[[Any, Tensors, Mapping[str, int]], Call]:
    """Attention over cells that lie in order, without pages."""

    def make(torch: Any, given: Tensors, sizes: Mapping[str, int]) -> Call:
        lanes, cells, heads, kv_heads, dim = (sizes[name] for name in ("lanes", "cells", "heads", "kv_heads", "dim"))
        order = given["page_indices"].long()
        k, v = (given[name][order].reshape(lanes, -1, kv_heads, dim)[:, :cells].transpose(1, 2).contiguous() for name in ("k", "v"))
        q = given["q"].reshape(lanes, -1, heads, dim).transpose(1, 2)

        def call() -> Any:
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=not decode, enable_gqa=True)
            return out.transpose(1, 2).reshape(given["out"].shape)

        return call

    return make


# ------------------------------------------------------------------------------------------------ products of the very weights
def decoded(dtype: str) -> Make:
    """The product in float32 by the weight that the kernel's planes stand for."""

    def make(torch: Any, given: Tensors, sizes: Mapping[str, int]) -> Call:
        w = DECODED[dtype](torch, given, sizes["outputs"], sizes["width"])
        return lambda: given["x"].float() @ w.t()

    return make


def _e4m3(torch: Any, given: Tensors, outputs: int, width: int) -> Any:
    return given["w.code"].view(torch.float8_e4m3fn).reshape(outputs, width).float()


def _nibbles(torch: Any, given: Tensors, outputs: int, width: int) -> Any:
    """4-bit codes, the lower half of a byte first."""
    code = given["w.code"].reshape(outputs, width // 2)
    return torch.stack((code & 15, code >> 4), -1).reshape(outputs, width)


def _by_group(given: Tensors, plane: str, outputs: int, width: int) -> Any:
    """A turned plane `[groups, outputs']` as a factor of each element."""
    groups = given[plane].shape[0]
    return given[plane].float().t()[:outputs].repeat_interleave(width // groups, 1)


def _e4m3row(torch: Any, given: Tensors, outputs: int, width: int) -> Any:
    return _e4m3(torch, given, outputs, width) * given["w.row_gain"][:, None]


def _e4m3tile(torch: Any, given: Tensors, outputs: int, width: int) -> Any:
    return _e4m3(torch, given, outputs, width) * _by_group(given, "w.gain", outputs, width)


def _u4g64(torch: Any, given: Tensors, outputs: int, width: int) -> Any:
    gain, offset = (_by_group(given, plane, outputs, width) for plane in ("w.gain", "w.offset"))
    return _nibbles(torch, given, outputs, width).float() * gain + offset


def _nvfp4(torch: Any, given: Tensors, outputs: int, width: int) -> Any:
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], device=given["x"].device)
    w = values[_nibbles(torch, given, outputs, width).int()]
    return w * _by_group(given, "w.gain", outputs, width) * given["w.row_gain"][:, None]


DECODED = {"e4m3row": _e4m3row, "e4m3tile128a8": _e4m3tile, "u4g64": _u4g64, "nvfp4": _nvfp4}

ADD_RMSNORM = Rival("torch add, rms_norm", _add_rmsnorm)
GLU = Rival("torch silu, mul", _glu, _glu)
MM = Rival("torch.mm", _mm, _mm)
OF_E4M3 = Rival("torch._scaled_mm, one scale", _scaled_mm, decoded("e4m3row"))
OF_E4M3_TILES = Rival("torch._scaled_mm, one scale", _scaled_mm, decoded("e4m3tile128a8"), OF_CODES)
OF_U4 = Rival("torch._weight_int4pack_mm", _int4pack_mm, decoded("u4g64"))
OF_NVFP4 = Rival("torch.mm of bf16", _mm_of_bf16, decoded("nvfp4"))
DECODE = Rival("torch SDPA, no pages", attention_of(decode=True), attention_of(decode=True))
PREFILL = Rival("torch SDPA, no pages", attention_of(decode=False), attention_of(decode=False))
