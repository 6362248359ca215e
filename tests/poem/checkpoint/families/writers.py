"""Checkpoints as other projects publish them, written element by element from the description of each layout.

A writer takes the module's name and a matrix [N, K] of float32, quantises it in a simple way of its own, and returns the
tensors that the family stores for it together with the values that the family says they mean, in float64. Nothing here
uses Poem's own packing or decoding: plain loops, so that a mistake cannot be shared.
"""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tests.poem.checkpoint.files import Tagged

Tensors = dict[str, np.ndarray | Tagged]
Written = tuple[Tensors, np.ndarray]
Writer = Callable[[str, np.ndarray], Written]

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _e4m3(value: float) -> int:
    """The code of the nearest e4m3 number."""
    return int(np.float32(max(-448.0, min(448.0, value))).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def _e4m3_value(code: int) -> float:
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -magnitude if code & 0x80 else magnitude


def _e2m1(value: float) -> int:
    nearest = min(range(8), key=lambda code: abs(E2M1[code] - abs(value)))
    return nearest | (8 if value < 0 else 0)


def _e2m1_value(code: int) -> float:
    return -E2M1[code & 7] if code & 8 else E2M1[code]


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """Two codes a byte, the even one low."""
    rows, columns = codes.shape
    out = np.zeros((rows, columns // 2), np.uint8)
    for r in range(rows):
        for k in range(columns):
            out[r, k // 2] |= int(codes[r, k]) << (4 * (k % 2))
    return out


def _words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Rows of codes in words of 32 bits, the first in the lowest bits."""
    rows, columns = codes.shape
    out = np.zeros((rows, -(-columns * bits // 32)), np.uint32)
    for r in range(rows):
        for k in range(columns):
            out[r, k * bits // 32] |= np.uint32(int(codes[r, k]) << (k * bits % 32))
    return out


# -- FP8 -------------------------------------------------------------------------------------------
def fp8(
    *, rows: int | None, columns: int | None, suffix: str = "weight_scale", leaf: str = "f32", shape: tuple[int, ...] | None = None
) -> Writer:
    """e4m3 codes with a scale for tiles of rows by columns (None: all). leaf: of the scale. shape: of the scale where not its tiles."""

    def write(module: str, matrix: np.ndarray) -> Written:
        n, k = matrix.shape
        high, wide = rows or n, columns or k
        scales = np.zeros((-(-n // high), -(-k // wide)))
        codes, values = np.zeros((n, k), np.uint8), np.zeros((n, k))
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                tile = matrix[i * high : (i + 1) * high, j * wide : (j + 1) * wide]
                scale = float(np.abs(tile).max()) / 448
                if leaf == "e8m0":
                    scale = 2.0 ** math.ceil(math.log2(scale))
                elif leaf == "bf16":
                    scale = float(np.float32(scale).astype(ml_dtypes.bfloat16))
                scales[i, j] = np.float32(scale)
        for r in range(n):
            for c in range(k):
                scale = scales[r // high, c // wide]
                codes[r, c] = _e4m3(matrix[r, c] / scale)
                values[r, c] = _e4m3_value(int(codes[r, c])) * scale
        held = scales.reshape(shape if shape is not None else scales.shape)
        stored: Any = {
            "f32": lambda: held.astype(np.float32),
            "bf16": lambda: held.astype(ml_dtypes.bfloat16),
            "e8m0": lambda: ("F8_E8M0", (np.log2(held) + 127).astype(np.uint8)),
        }[leaf]()
        return {f"{module}.weight": ("F8_E4M3", codes), f"{module}.{suffix}": stored}, values

    return write


# -- 4-bit floats ------------------------------------------------------------------------------------
def _nvfp4(matrix: np.ndarray, whole: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, block scales and values. whole: the scale of the whole tensor."""
    n, k = matrix.shape
    codes, scales, values = np.zeros((n, k), np.uint8), np.zeros((n, k // 16), np.uint8), np.zeros((n, k))
    for r in range(n):
        for b in range(k // 16):
            scales[r, b] = max(1, _e4m3(float(np.abs(matrix[r, b * 16 : b * 16 + 16]).max()) / 6 / whole))
            for c in range(b * 16, b * 16 + 16):
                codes[r, c] = _e2m1(matrix[r, c] / (_e4m3_value(int(scales[r, b])) * whole))
                values[r, c] = _e2m1_value(int(codes[r, c])) * _e4m3_value(int(scales[r, b])) * whole
    return codes, scales, values


def modelopt_nvfp4(module: str, matrix: np.ndarray) -> Written:
    """P.weight U8, P.weight_scale F8_E4M3, P.weight_scale_2 F32 that multiplies; P.input_scale."""
    whole = np.array(np.abs(matrix).max() / 2688, np.float32)
    codes, scales, values = _nvfp4(matrix, float(whole))
    return {
        f"{module}.weight": _nibbles(codes),
        f"{module}.weight_scale": ("F8_E4M3", scales),
        f"{module}.weight_scale_2": whole,
        f"{module}.input_scale": np.float32(0.5).reshape(()),
    }, values


def compressed_tensors_nvfp4(module: str, matrix: np.ndarray) -> Written:
    """P.weight_packed U8, P.weight_scale F8_E4M3, P.weight_global_scale F32 [1] that divides."""
    reciprocal = np.float32(2688 / np.abs(matrix).max())
    codes, scales, values = _nvfp4(matrix, float(np.float32(1) / reciprocal))
    return {
        f"{module}.weight_packed": _nibbles(codes),
        f"{module}.weight_scale": ("F8_E4M3", scales),
        f"{module}.weight_global_scale": reciprocal.reshape(1),
    }, values


def _mxfp4(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n, k = matrix.shape
    codes, scales, values = np.zeros((n, k), np.uint8), np.zeros((n, k // 32), np.uint8), np.zeros((n, k))
    for r in range(n):
        for b in range(k // 32):
            exponent = math.floor(math.log2(float(np.abs(matrix[r, b * 32 : b * 32 + 32]).max()))) - 2
            scales[r, b] = exponent + 127
            for c in range(b * 32, b * 32 + 32):
                codes[r, c] = _e2m1(matrix[r, c] / 2.0**exponent)
                values[r, c] = _e2m1_value(int(codes[r, c])) * 2.0**exponent
    return codes, scales, values


def compressed_tensors_mxfp4(module: str, matrix: np.ndarray) -> Written:
    """P.weight_packed U8, P.weight_scale U8 (e8m0)."""
    codes, scales, values = _mxfp4(matrix)
    return {f"{module}.weight_packed": _nibbles(codes), f"{module}.weight_scale": scales}, values


def gpt_oss_mxfp4(module: str, matrix: np.ndarray) -> Written:
    """P.weight_blocks U8 [N, K/32, 16] and P.weight_scales U8 [N, K/32]."""
    codes, scales, values = _mxfp4(matrix)
    blocks = _nibbles(codes).reshape(len(matrix), -1, 16)
    return {f"{module}.weight_blocks": blocks, f"{module}.weight_scales": scales}, values


def mlx_mxfp4(module: str, matrix: np.ndarray) -> Written:
    """P.weight U32 words, P.scales U8 (e8m0)."""
    codes, scales, values = _mxfp4(matrix)
    return {f"{module}.weight": _words(codes, 4), f"{module}.scales": scales}, values


def mlx_nvfp4(module: str, matrix: np.ndarray) -> Written:
    """P.weight U32 words, P.scales U8 (e4m3), no scale of the whole tensor."""
    codes, scales, values = _nvfp4(matrix, 1.0)
    return {f"{module}.weight": _words(codes, 4), f"{module}.scales": scales}, values


# -- integers --------------------------------------------------------------------------------------
def _affine(matrix: np.ndarray, group: int, bits: int, leaf: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and least values, both as numbers of `leaf`."""
    n, k = matrix.shape
    codes, scales, least = np.zeros((n, k), np.int64), np.zeros((n, k // group), leaf), np.zeros((n, k // group), leaf)
    for r in range(n):
        for g in range(k // group):
            part = matrix[r, g * group : g * group + group]
            scales[r, g] = (part.max() - part.min()) / (2**bits - 1)
            least[r, g] = part.min()
            for c in range(g * group, g * group + group):
                codes[r, c] = max(0, min(2**bits - 1, round((float(matrix[r, c]) - float(least[r, g])) / float(scales[r, g]))))
    return codes, scales, least


def mlx_affine(*, bits: int, group: int, leaf: Any = ml_dtypes.bfloat16) -> Writer:
    """P.weight U32 words, P.scales and P.biases; value = code * scale + bias."""

    def write(module: str, matrix: np.ndarray) -> Written:
        codes, scales, least = _affine(matrix, group, bits, leaf)
        values = np.zeros(matrix.shape)
        for r in range(len(matrix)):
            for c in range(matrix.shape[1]):
                values[r, c] = codes[r, c] * float(scales[r, c // group]) + float(least[r, c // group])
        return {f"{module}.weight": _words(codes, bits), f"{module}.scales": scales, f"{module}.biases": least}, values

    return write


def _with_zero_points(matrix: np.ndarray, group: int, bits: int, leaf: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes, zero points, scales of `leaf`, and the values (code - zero) * scale."""
    codes, scales, least = _affine(matrix, group, bits, leaf)
    zeros, values = np.zeros(scales.shape, np.int64), np.zeros(matrix.shape)
    for r in range(len(matrix)):
        for g in range(scales.shape[1]):
            zeros[r, g] = max(1, min(2**bits - 2, round(-float(least[r, g]) / float(scales[r, g]))))
        for c in range(matrix.shape[1]):
            zero, scale = zeros[r, c // group], float(scales[r, c // group])
            codes[r, c] = max(0, min(2**bits - 1, round(float(matrix[r, c]) / scale) + zero))
            values[r, c] = (codes[r, c] - zero) * scale
    return codes, zeros, scales, values


def _awq_words(codes: np.ndarray) -> np.ndarray:
    """[K, N] codes in words: nibble i is column 8 * word + order[i]."""
    rows, columns = codes.shape
    out = np.zeros((rows, columns // 8), np.uint32)
    for r in range(rows):
        for word in range(columns // 8):
            for i, column in enumerate(AWQ_ORDER):
                out[r, word] |= np.uint32(int(codes[r, 8 * word + column]) << (4 * i))
    return out.view(np.int32)


def awq(*, group: int) -> Writer:
    """P.qweight I32 [K, N/8], P.qzeros I32 [K/g, N/8], P.scales F16 [K/g, N]."""

    def write(module: str, matrix: np.ndarray) -> Written:
        codes, zeros, scales, values = _with_zero_points(matrix, group, 4, np.float16)
        return {
            f"{module}.qweight": _awq_words(codes.T),
            f"{module}.qzeros": _awq_words(zeros.T),
            f"{module}.scales": np.ascontiguousarray(scales.T),
        }, values

    return write


def gptq(*, group: int, bits: int = 4, version: int = 1, leaf: Any = np.float16, g_idx: bool = True) -> Writer:
    """P.qweight I32 [K*b/32, N], P.qzeros I32 [K/g, N*b/32] (less one in version 1), P.scales [K/g, N], P.g_idx I32 [K]."""

    def write(module: str, matrix: np.ndarray) -> Written:
        codes, zeros, scales, values = _with_zero_points(matrix, group, bits, leaf)
        tensors: Tensors = {
            f"{module}.qweight": np.ascontiguousarray(_words(codes, bits).T).view(np.int32),
            f"{module}.qzeros": _words(zeros.T - (version == 1), bits).view(np.int32),
            f"{module}.scales": np.ascontiguousarray(scales.T),
        }
        if g_idx:
            tensors[f"{module}.g_idx"] = np.array([k // group for k in range(matrix.shape[1])], np.int32)
        return tensors, values

    return write


def pack_quantized(
    *, group: int | None, bits: int = 4, leaf: Any = ml_dtypes.bfloat16, symmetric: bool = True, scattered: bool = False
) -> Writer:
    """P.weight_packed I32 (codes + 2^(b-1)), P.weight_scale, P.weight_shape; P.weight_zero_point and P.weight_g_idx where asked."""

    def write(module: str, matrix: np.ndarray) -> Written:
        n, k = matrix.shape
        wide, half = group or k, 2 ** (bits - 1)
        order = np.random.default_rng(k).permutation(k) if scattered else np.arange(k)
        arranged = matrix[:, order]  # groups are runs of these columns
        if symmetric:
            scales, codes, inner = np.zeros((n, k // wide), leaf), np.zeros((n, k), np.int64), np.zeros((n, k))
            zeros = np.full((n, k // wide), half)
            for r in range(n):
                for g in range(k // wide):
                    scales[r, g] = np.abs(arranged[r, g * wide : g * wide + wide]).max() / (half - 0.5)
                for c in range(k):
                    scale = float(scales[r, c // wide])
                    codes[r, c] = max(-half, min(half - 1, round(float(arranged[r, c]) / scale))) + half
                    inner[r, c] = (codes[r, c] - half) * scale
        else:
            codes, zeros, scales, inner = _with_zero_points(arranged, wide, bits, leaf)
        stored, values, index = np.zeros((n, k), np.int64), np.zeros((n, k)), np.zeros(k, np.int32)
        for position, column in enumerate(order):
            stored[:, column], values[:, column], index[column] = codes[:, position], inner[:, position], position // wide
        tensors: Tensors = {
            f"{module}.weight_packed": _words(stored, bits).view(np.int32),
            f"{module}.weight_scale": scales,
            f"{module}.weight_shape": np.array([n, k], np.int64),
        }
        if not symmetric:  # packed along the rows
            tensors[f"{module}.weight_zero_point"] = np.ascontiguousarray(_words(zeros.T, bits).T).view(np.int32)
        if scattered:
            tensors[f"{module}.weight_g_idx"] = index
        return tensors, values

    return write
