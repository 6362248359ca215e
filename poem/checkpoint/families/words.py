"""AWQ and GPTQ: codes in words of 32 bits, stored as [K, N], with zero points and a scale for each group of inputs.

    AWQ (gemm), 4 bits:  P.qweight I32 [K, N/8];  P.qzeros I32 [K/g, N/8], 8 everywhere where it is missing;  P.scales [K/g, N]
        nibble i of a word is output 8 * word + (0, 2, 4, 6, 1, 3, 5, 7)[i]
    GPTQ, b bits:        P.qweight I32 [K*b/32, N];  P.qzeros I32 [K/g, N*b/32];  P.scales [K/g, N];  P.g_idx I32 [K]
        field i of a word of qweight is input 32/b * row + i; of qzeros, output 32/b * word + i
        checkpoint_format "gptq" stores the zero point less one, "gptq_v2" as it is

value[n, k] = (q - zero) * scale. config.json tells the three apart; the tensors cannot. Groups scattered over the inputs
(act-order) are refused.
"""

from collections.abc import Iterator

import numpy as np

from poem.checkpoint.families.common import companions, from_planes, illegible, module_of, unreadable
from poem.checkpoint.families.config import Stated
from poem.checkpoint.stored import RawTensor, Stored, Table
from poem.dtypes import Dtype, leaves

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
SCALES = ("f16", "bf16", "f32")


def find(table: Table, name: str, stated: Stated) -> Stored | None:
    """Words of a weight of that name."""
    module = module_of(name)
    raw, scales, zeros, group_of = (table.get(f"{module}.{part}") for part in ("qweight", "scales", "qzeros", "g_idx"))
    if raw is None:
        return None
    tensors = companions(table, name, raw, scales, zeros, group_of)
    awq, bits = stated.method == "awq", stated.bits
    if stated.method not in ("awq", "gptq") or bits is None:
        problem = "AWQ or GPTQ words, which cannot be told apart without quantization_config in config.json"
        if stated.said:
            problem = f"AWQ or GPTQ words, where the configuration says {stated.said}"
        return unreadable(name, "i32", raw.shape, tensors, problem)
    if raw.tag != "I32" or len(raw.shape) != 2 or scales is None:
        problem = f"words without their scales `{module}.scales`" if scales is None else f"I32 words wanted, found {raw.tag}"
        return unreadable(name, stated.method, raw.shape, tensors, problem)
    per_word = 32 // bits
    inputs, outputs = (raw.shape[0], raw.shape[1] * per_word) if awq else (raw.shape[0] * per_word, raw.shape[1])
    shape, groups = (outputs, inputs), scales.shape[0] if scales.shape else 0
    group = inputs // max(1, groups)
    word = f"{stated.method}{bits}:g{group}"
    problem = ""
    if scales.shape != (groups, outputs) or scales.leaf not in SCALES or group * groups != inputs or (stated.group or group) != group:
        wanted = f"{stated.said}: {inputs / stated.group:g}" if stated.group else "K / group"
        problem = f"the scales of {list(shape)} are [{wanted}, {outputs}] floats, found {list(scales.shape)} {scales.tag}"
    elif zeros is None and not (awq and stated.symmetric):
        problem = f"its zero points `{module}.qzeros` are missing"
    elif zeros is not None and (zeros.tag, zeros.shape) != ("I32", (groups, outputs // per_word)):
        problem = f"zero points are I32 [{groups}, {outputs // per_word}], found {list(zeros.shape)} {zeros.tag}"
    elif group_of is not None and (awq or group_of.leaf not in ("i32", "i64") or group_of.shape != (inputs,)):
        problem = f"`{group_of.name}` {list(group_of.shape)} {group_of.tag} is no group for each of {inputs} inputs of {stated.method}"
    if problem:
        return unreadable(name, word, shape, tensors, problem)

    def spread(start: int, stop: int) -> tuple[slice, slice]:
        """The words that hold a range of outputs, and where it is among their outputs."""
        first, last = start // per_word, -(-stop // per_word)
        return slice(first, last), slice(start - first * per_word, stop - first * per_word)

    def factors(start: int, stop: int) -> dict[str, np.ndarray]:
        return {"gain": np.ascontiguousarray(scales.data()[:, start:stop].T), "offset": zero_points(start, stop)}

    def zero_points(start: int, stop: int) -> np.ndarray:
        if zeros is None:
            return np.full((stop - start, groups), 8, np.uint8)
        held, kept = spread(start, stop)
        if awq:
            return _awq_codes(zeros.data()[:, held])[kept]
        fields = leaves.unpack(np.ascontiguousarray(zeros.data()[:, held]).view(np.uint8), bits)
        return np.ascontiguousarray(fields[:, kept].T) + np.uint8(stated.version == "gptq")

    def codes(start: int, stop: int) -> np.ndarray:
        if not awq:
            return np.ascontiguousarray(raw.data()[:, start:stop].T).view(np.uint8)
        held, kept = spread(start, stop)
        return leaves.pack(_awq_codes(raw.data()[:, held])[kept], bits)

    def check() -> Iterator[str]:
        if not awq:
            _check_gptq(name, zeros, group_of, group, groups, bits, stated.version)
        return iter(())

    term = Dtype(f"g{group}_u{bits}_{scales.leaf}_z_u8")
    return from_planes(name, word, term, shape, tensors, codes, factors, check=check)


def _awq_codes(words: np.ndarray) -> np.ndarray:
    """The 4-bit codes of words [K, W] as [8 * W, K]."""
    turned = np.ascontiguousarray(words.T).view(np.uint32)
    out = np.empty((len(turned), len(AWQ_ORDER), turned.shape[1]), np.uint8)
    for nibble, column in enumerate(AWQ_ORDER):
        np.bitwise_and(turned >> np.uint32(4 * nibble), 15, out=out[:, column], casting="unsafe")
    return out.reshape(-1, turned.shape[1])


def _check_gptq(
    name: str, zeros: RawTensor | None, group_of: RawTensor | None, group: int, groups: int, bits: int, version: str
) -> None:  # fmt: skip
    if group_of is not None:
        found = group_of.data()
        wrong = np.flatnonzero((found < 0) | (found >= groups))
        if wrong.size:
            raise illegible(name, group_of, f"its groups are 0 to {groups - 1}", f"holds {found[wrong[0]]} at [{wrong[0]}]")
        scattered = np.flatnonzero(found != np.arange(len(found)) // group)
        if scattered.size:
            at = scattered[0]
            problem = f"its groups are scattered over the inputs (act-order, desc_act), which is not read: only runs of {group}"
            raise illegible(name, group_of, problem, f"puts input {at} into group {found[at]}, not {at // group}")
    if zeros is not None and version == "gptq":
        fields = leaves.unpack(zeros.data().view(np.uint8), bits)
        full = np.argwhere(fields == 2**bits - 1)
        if full.size:
            problem = f"a zero point stored as {2**bits - 1} is ambiguous in checkpoint_format gptq: writers differ in whether one is added"
            raise illegible(name, zeros, problem, f"for group {full[0][0]}, output {full[0][1]}")
