"""Damaged and contradictory quantised checkpoints are refused while planning, by code, with tensor and reason."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from poem.checkpoint import open_checkpoint
from poem.errors import PoemError
from poem.importer import plan_import
from poem.importer.plan import ImportPlan
from tests.poem.checkpoint.families import writers
from tests.poem.checkpoint.families.test_minis import BLOCK, FLOAT8, INT4, WHOLE, compressed, gptq, mlx, modelopt
from tests.poem.checkpoint.files import write_checkpoint
from tests.poem.importer.fakes import package, pairs, weight

N, K = 40, 128
MATRIX = np.random.default_rng(11).standard_normal((N, K)).astype(np.float32)
Tensors = dict[str, Any]
Damage = Callable[[Tensors], object]


def plan(
    folder: Path, tensors: Tensors, said: Mapping[str, Any] | None, wanted: str = "bf16", key: str = "quantization_config"
) -> ImportPlan:
    held = package({"w": weight([N, K], wanted)}, pairs(("w.weight", "w")), dtype=wanted)
    checkpoint = open_checkpoint(write_checkpoint(folder, tensors, {key: said} if said is not None else {}))
    return plan_import(checkpoint, [held], deployment=next(iter(held.deployments)))


def bytes_of(tensors: Tensors, name: str) -> np.ndarray:
    held = tensors[name]
    return held[1] if isinstance(held, tuple) else held


def put(name: str, index: Any, value: Any) -> Damage:
    """Overwrite one element."""

    def damage(tensors: Tensors) -> None:
        bytes_of(tensors, name)[index] = value

    return damage


def drop(name: str) -> Damage:
    return lambda tensors: tensors.pop(name)


def cut(name: str, index: Any) -> Damage:
    """Keep a part of a tensor."""

    def damage(tensors: Tensors) -> None:
        held = tensors[name]
        part = np.ascontiguousarray(bytes_of(tensors, name)[index])
        tensors[name] = (held[0], part) if isinstance(held, tuple) else part

    return damage


def add(name: str, array: Any) -> Damage:
    return lambda tensors: tensors.update({name: array})


def as_type(name: str, dtype: Any) -> Damage:
    return lambda tensors: tensors.update({name: bytes_of(tensors, name).astype(dtype)})


TILES = writers.fp8(rows=128, columns=128, suffix="weight_scale_inv")
NARROW = writers.fp8(rows=16, columns=64, suffix="weight_scale_inv")
ROWS = writers.fp8(rows=1, columns=None)
ONE = writers.fp8(rows=None, columns=None, shape=())
NVFP4_PACKED = compressed("nvfp4-pack-quantized", num_bits=4, type="float", symmetric=True, group_size=16)
MXFP4 = {"quant_method": "mxfp4"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
PACKED = compressed("pack-quantized", **INT4, group_size=64)
ASYMMETRIC = compressed("pack-quantized", **INT4 | {"symmetric": False}, group_size=64)
NVFP4, PLAIN = modelopt("NVFP4"), np.zeros((N, K), ml_dtypes.bfloat16)


@dataclasses.dataclass(frozen=True)
class Case:
    """A good checkpoint with one fault, the code of its error and what the error says. wanted: the dtype of the weight."""

    write: writers.Writer
    said: Mapping[str, Any] | None
    damage: Damage
    code: str
    expect: tuple[str, ...]
    wanted: str = "bf16"
    key: str = "quantization_config"


def nothing(tensors: Tensors) -> None: ...


def half_a_byte(tensors: Tensors) -> None:
    """A shape of one column less: its last word is as full as before."""
    bytes_of(tensors, "w.weight_shape")[1] = K - 1


def in_group(**said: Any) -> dict[str, Any]:
    """A configuration of compressed-tensors whose one group says something else."""
    whole = compressed("float-quantized", **FLOAT8, strategy="tensor")
    return whole | {"config_groups": {"g": whole["config_groups"]["group_0"] | said}}


ILL, BAD, ASK = "import.illegible", "import.bad-scale", "import.requantise"
CASES = {
    # scales that are no numbers, or zero
    "nvfp4: NaN block scale": Case(
        writers.modelopt_nvfp4, NVFP4, put("w.weight_scale", (3, 2), 0x7F), BAD, ("is NaN", "`w.weight_scale` at [3, 2]")
    ),
    "nvfp4: zero block scale": Case(
        writers.modelopt_nvfp4, NVFP4, put("w.weight_scale", (3, 2), 0), BAD, ("is zero", "`w.weight_scale` at [3, 2]")
    ),
    "nvfp4: zero whole scale": Case(writers.modelopt_nvfp4, NVFP4, put("w.weight_scale_2", (), 0), BAD, ("is zero", "`w.weight_scale_2`")),
    "nvfp4: negative whole scale": Case(writers.modelopt_nvfp4, NVFP4, put("w.weight_scale_2", (), -1), BAD, ("is negative",)),
    "nvfp4: infinite reciprocal": Case(
        writers.compressed_tensors_nvfp4, NVFP4_PACKED, put("w.weight_global_scale", 0, np.inf), BAD, ("is zero",)
    ),
    "nvfp4: reciprocal of zero": Case(
        writers.compressed_tensors_nvfp4, NVFP4_PACKED, put("w.weight_global_scale", 0, 0), BAD, ("not finite",)
    ),
    "mxfp4: NaN scale": Case(
        writers.gpt_oss_mxfp4, MXFP4, put("w.weight_scales", (39, 3), 0xFF), BAD, ("is NaN", "`w.weight_scales` at [39, 3]")
    ),
    "fp8: NaN tile scale": Case(
        TILES, BLOCK, put("w.weight_scale_inv", (0, 0), np.nan), BAD, ("not finite", "`w.weight_scale_inv` at [0, 0]")
    ),
    "fp8: zero row scale": Case(ROWS, WHOLE, put("w.weight_scale", (7, 0), 0), BAD, ("is zero", "[7]")),
    "mlx: infinite bias": Case(
        writers.mlx_affine(bits=4, group=64),
        mlx(4, 64),
        put("w.biases", (2, 1), np.inf),
        BAD,
        ("`w.biases` at [2, 1]",),
        key="quantization",
    ),
    "awq: NaN scale": Case(
        writers.awq(group=32), AWQ, put("w.scales", (1, 5), np.nan), BAD, ("not finite", "gain of `w.qweight` at [5, 1]")
    ),
    "packed: zero scale": Case(writers.pack_quantized(group=64), PACKED, put("w.weight_scale", (1, 1), 0), BAD, ("is zero", "[1, 1]")),
    # planes of a wrong shape or type
    "fp8: a tile too few": Case(
        NARROW,
        {**BLOCK, "weight_block_size": [16, 64]},
        cut("w.weight_scale_inv", slice(2)),
        ILL,
        ("FP8 scales [2, 2]", "tile of 16 by 64"),
    ),
    "nvfp4: scales of other groups": Case(
        writers.modelopt_nvfp4, NVFP4, cut("w.weight_scale", (slice(None), slice(4))), ILL, ("w.weight", "[40, 8]")
    ),
    "nvfp4: scales transposed": Case(
        writers.modelopt_nvfp4,
        NVFP4,
        lambda t: t.update({"w.weight_scale": ("F8_E4M3", t["w.weight_scale"][1].T)}),
        ILL,
        ("`w.weight_scale` [8, 40]",),
    ),
    "nvfp4: K no multiple of 16": Case(
        writers.modelopt_nvfp4, NVFP4, cut("w.weight", (slice(None), slice(60))), ILL, ("120 is no multiple of 16",)
    ),
    "mxfp4: blocks of another width": Case(
        writers.gpt_oss_mxfp4, MXFP4, cut("w.weight_blocks", (..., slice(8))), ILL, ("[..., K/32, 16]", "[40, 4, 8]")
    ),
    "mxfp4: scales of a row too few": Case(writers.gpt_oss_mxfp4, MXFP4, cut("w.weight_scales", slice(39)), ILL, ("[39, 4]",)),
    "mlx: biases of another shape": Case(
        writers.mlx_affine(bits=4, group=64), mlx(4, 64), cut("w.biases", slice(39)), ILL, ("biases [39, 2]",), key="quantization"
    ),
    "awq: zero points too few": Case(
        writers.awq(group=32), AWQ, cut("w.qzeros", slice(3)), ILL, ("zero points are I32 [4, 5], found [3, 5]",)
    ),
    "gptq: scales too few": Case(writers.gptq(group=32), gptq(), cut("w.scales", slice(3)), ILL, ("[3, 40]",)),
    "gptq: g_idx too short": Case(writers.gptq(group=32), gptq(), cut("w.g_idx", slice(64)), ILL, ("`w.g_idx` [64]",)),
    "packed: words too few": Case(
        writers.pack_quantized(group=64), PACKED, cut("w.weight_packed", (slice(None), slice(15))), ILL, ("[40, 15]", "[40, 128]")
    ),
    "packed: shape of another weight": Case(writers.pack_quantized(group=64), PACKED, put("w.weight_shape", 0, 41), ILL, ("[41, 128]",)),
    "packed: zero points transposed": Case(
        writers.pack_quantized(group=64, symmetric=False),
        ASYMMETRIC,
        lambda t: t.update({"w.weight_zero_point": t["w.weight_zero_point"].T}),
        ILL,
        ("I32 [5, 2], found [2, 5]",),
    ),
    "fp8: integer scales": Case(ROWS, WHOLE, as_type("w.weight_scale", np.int32), ILL, ("I32 scales",)),
    "nvfp4: scales of another type": Case(
        writers.modelopt_nvfp4, NVFP4, as_type("w.weight_scale", np.uint8), ILL, ("F8_E4M3 scales and one F32 scale", "[40, 8] U8")
    ),
    "nvfp4: a whole scale a row": Case(
        writers.modelopt_nvfp4, NVFP4, add("w.weight_scale_2", np.ones(N, np.float32)), ILL, ("one F32 scale", "[40] F32")
    ),
    "nvfp4: a global scale a row": Case(
        writers.compressed_tensors_nvfp4, NVFP4_PACKED, add("w.weight_global_scale", np.ones(N, np.float32)), ILL, ("found [40] F32",)
    ),
    "nvfp4: packed codes of another type": Case(
        writers.compressed_tensors_nvfp4,
        NVFP4_PACKED,
        as_type("w.weight_packed", np.int8),
        ILL,
        ("packed I8 codes with F8_E4M3 scales and",),
    ),
    "packed: words of half a byte too many": Case(
        writers.pack_quantized(group=None),
        compressed("pack-quantized", **INT4 | {"strategy": "channel"}),
        half_a_byte,
        ILL,
        ("a row of 127 codes of 4 bits",),
    ),
    "packed: groups of too few columns": Case(
        writers.pack_quantized(group=64, scattered=True),
        PACKED,
        cut("w.weight_g_idx", slice(64)),
        ILL,
        ("every column wants its group", "[64]"),
    ),
    # codes out of range
    "gptq: act-order": Case(
        writers.gptq(group=32), gptq(desc_act=True), put("w.g_idx", 5, 2), ILL, ("act-order", "puts input 5 into group 2, not 0")
    ),
    "gptq: group out of range": Case(writers.gptq(group=32), gptq(), put("w.g_idx", 5, 4), ILL, ("groups are 0 to 3", "holds 4 at [5]")),
    "gptq: ambiguous zero point": Case(
        writers.gptq(group=32), gptq(), put("w.qzeros", (1, 0), -1), ILL, ("ambiguous", "group 1, output 0")
    ),
    "packed: group out of range": Case(
        writers.pack_quantized(group=64, scattered=True),
        compressed("pack-quantized", **INT4, group_size=64),
        put("w.weight_g_idx", 9, -1),
        ILL,
        ("groups are 0 to 1", "holds -1 at [9]"),
    ),
    # missing planes
    "fp8: codes without scale": Case(TILES, BLOCK, drop("w.weight_scale_inv"), ILL, ("codes without their scale",)),
    "nvfp4: no whole scale": Case(writers.modelopt_nvfp4, NVFP4, drop("w.weight_scale_2"), ILL, ("without `w.weight_scale_2`",)),
    "nvfp4: no block scales": Case(writers.modelopt_nvfp4, NVFP4, drop("w.weight_scale"), ILL, ("without `w.weight_scale`",)),
    "nvfp4: no global scale": Case(
        writers.compressed_tensors_nvfp4, NVFP4_PACKED, drop("w.weight_global_scale"), ILL, ("without `w.weight_global_scale`",)
    ),
    "mxfp4: no scales": Case(writers.gpt_oss_mxfp4, MXFP4, drop("w.weight_scales"), ILL, ("without their scales `w.weight_scales`",)),
    "mlx: no scales": Case(
        writers.mlx_affine(bits=4, group=64), mlx(4, 64), drop("w.scales"), ILL, ("without their scales `w.scales`",), key="quantization"
    ),
    "mlx: no biases": Case(writers.mlx_affine(bits=4, group=64), mlx(4, 64), drop("w.biases"), ILL, ("no biases",), key="quantization"),
    "awq: no zero points": Case(writers.awq(group=32), AWQ, drop("w.qzeros"), ILL, ("`w.qzeros` are missing",)),
    "gptq: no scales": Case(writers.gptq(group=32), gptq(), drop("w.scales"), ILL, ("without their scales `w.scales`",)),
    "nvfp4: packed codes without scale": Case(
        writers.compressed_tensors_nvfp4, NVFP4_PACKED, drop("w.weight_scale"), ILL, ("packed codes without their scale",)
    ),
    "packed: no shape": Case(writers.pack_quantized(group=64), PACKED, drop("w.weight_shape"), ILL, ("without their shape",)),
    "packed: no zero points": Case(
        writers.pack_quantized(group=64, symmetric=False),
        ASYMMETRIC,
        drop("w.weight_zero_point"),
        ILL,
        ("`w.weight_zero_point` is missing",),
    ),
    # planes too many
    "fp8: two scales": Case(
        TILES, BLOCK, add("w.weight_scale", np.ones(1, np.float32)), ILL, ("two scales, `w.weight_scale_inv` and `w.weight_scale`",)
    ),
    "bf16 with a scale": Case(
        lambda module, matrix: ({f"{module}.weight": PLAIN}, np.zeros((N, K))),
        BLOCK,
        add("w.weight_scale_inv", np.ones((1, 1), np.float32)),
        ILL,
        ("`w.weight_scale_inv` beside it",),
    ),
    "nvfp4: a bf16 weight too": Case(
        writers.compressed_tensors_nvfp4, NVFP4_PACKED, add("w.weight", PLAIN), ILL, ("`w.weight` beside it",)
    ),
    "fp8: a zero point": Case(
        ROWS, WHOLE, add("w.weight_zero_point", np.zeros((N, 1), np.int8)), ILL, ("`w.weight_zero_point` beside it",)
    ),
    "nvfp4: scales its input": Case(
        writers.modelopt_nvfp4, NVFP4, add("w.pre_quant_scale", np.ones(K, np.float32)), ILL, ("pre_quant_scale",)
    ),
    "fp8: scales its input": Case(ONE, WHOLE, add("w.pre_quant_scale", np.ones(K, np.float32)), ILL, ("pre_quant_scale",)),
    "nvfp4: zero points": Case(
        writers.compressed_tensors_nvfp4, NVFP4_PACKED, add("w.weight_zero_point", np.zeros((N, 8), np.int32)), ILL, ("zero points",)
    ),
    "mxfp4: the bank twice": Case(writers.gpt_oss_mxfp4, MXFP4, add("w.weight", PLAIN), ILL, ("twice",)),
    # a configuration that contradicts the tensors
    "config of another family": Case(TILES, AWQ, nothing, ILL, ("FP8", "quant_method awq")),
    "blocks said, a scale a row stored": Case(ROWS, BLOCK, nothing, ILL, ("e4m3row", "blocks of 128 by 128")),
    "one scale said, one a row stored": Case(ROWS, modelopt("FP8"), nothing, ILL, ("e4m3row", "quant_algo FP8")),
    "mlx: other bits said": Case(
        writers.mlx_affine(bits=4, group=64), mlx(8, 64), nothing, ILL, ("8 bits in groups of 64",), key="quantization"
    ),
    "mlx: another mode said": Case(
        writers.mlx_mxfp4, mlx(4, 16, mode="nvfp4"), nothing, ILL, ("are mxfp4", "mode nvfp4"), key="quantization"
    ),
    "awq: another group said": Case(writers.awq(group=32), AWQ | {"group_size": 64}, nothing, ILL, ("group_size 64", "found [4, 40]")),
    "packed: another group said": Case(
        writers.pack_quantized(group=64), compressed("pack-quantized", **INT4, group_size=32), nothing, ILL, ("[40, 4]", "found [40, 2]")
    ),
    "packed: other bits said": Case(
        writers.pack_quantized(group=64), compressed("pack-quantized", **INT4 | {"num_bits": 8}, group_size=64), nothing, ILL, ("8 bits",)
    ),
    "words without a configuration": Case(writers.awq(group=32), None, nothing, ILL, ("cannot be told apart",)),
    "words where tiles are said": Case(writers.awq(group=32), BLOCK, nothing, ILL, ("AWQ or GPTQ words", "blocks of 128 by 128")),
    "mlx: bits that no word holds": Case(
        writers.mlx_affine(bits=4, group=64), mlx(6, 64), nothing, ILL, ("6 bits in groups of 64",), key="quantization"
    ),
    # what is not read at all
    "no method at all": Case(TILES, {"fmt": "e4m3"}, nothing, ILL, ("names no quant_method",)),
    "awq of 8 bits": Case(writers.awq(group=32), AWQ | {"bits": 8}, nothing, ILL, ("AWQ of 8 bits",)),
    "gptq by module": Case(writers.gptq(group=32), gptq(dynamic={"-:.*": {}}), nothing, ILL, ("`dynamic`",)),
    "tiles of no pair": Case(
        TILES, compressed("float-quantized", **FLOAT8, strategy="block", block_structure=128), nothing, ILL, ("block_structure",)
    ),
    "packed in 3 bits": Case(
        writers.pack_quantized(group=64),
        compressed("pack-quantized", **INT4 | {"num_bits": 3}),
        nothing,
        ILL,
        ("packed weights of 3 bits",),
    ),
    "nvfp4 in groups of 32": Case(
        writers.compressed_tensors_nvfp4,
        compressed("nvfp4-pack-quantized", num_bits=4, type="float", group_size=32),
        nothing,
        ILL,
        ("groups of 32 under the format nvfp4-pack-quantized",),
    ),
    "a module of an unknown algorithm": Case(
        TILES, modelopt("MIXED_PRECISION", quantized_layers={"w": {"quant_algo": "W4A16"}}), nothing, ILL, ("quant_algo W4A16",)
    ),
    "unknown method": Case(TILES, {"quant_method": "q_new"}, nothing, ILL, ("q_new", "not known")),
    "bitsandbytes": Case(TILES, {"quant_method": "bitsandbytes"}, nothing, ILL, ("bitsandbytes are not read",)),
    "unknown quant_algo": Case(TILES, modelopt("W4A8_NVFP4_FP8"), nothing, ILL, ("W4A8_NVFP4_FP8",)),
    "NVFP4_AWQ": Case(writers.modelopt_nvfp4, modelopt("NVFP4_AWQ"), nothing, ILL, ("NVFP4_AWQ",)),
    "nvfp4 groups of 32": Case(writers.modelopt_nvfp4, modelopt("NVFP4", group_size=32), nothing, ILL, ("groups of 32",)),
    "unknown format": Case(TILES, compressed("marlin-24"), nothing, ILL, ("marlin-24",)),
    "int8 activations and weights": Case(
        TILES, compressed("int-quantized", num_bits=8, type="int", strategy="channel"), nothing, ILL, ("int-quantized",)
    ),
    "awq gemv": Case(writers.awq(group=32), AWQ | {"version": "gemv"}, nothing, ILL, ("version gemv",)),
    "gptq of marlin": Case(writers.gptq(group=32), gptq(checkpoint_format="marlin"), nothing, ILL, ("checkpoint_format marlin",)),
    "gptq of 3 bits": Case(writers.gptq(group=32), gptq(bits=3), nothing, ILL, ("3 bits",)),
    "e5m2": Case(TILES, BLOCK | {"fmt": "e5m2"}, nothing, ILL, ("e5m2",)),
    "rotated weights": Case(
        TILES,
        compressed("float-quantized", num_bits=8, type="float", strategy="tensor") | {"transform_config": {"r": 1}},
        nothing,
        ILL,
        ("transform_config",),
    ),
    "mlx mode mxfp8": Case(writers.mlx_mxfp4, mlx(8, 32, mode="mxfp8"), nothing, ILL, ("mode mxfp8",), key="quantization"),
    # a configuration whose values are of another kind than any writer's
    "a format that is a list": Case(TILES, compressed("float-quantized", **FLOAT8) | {"format": ["x"]}, nothing, ILL, ("format ['x']",)),
    "a group's format that is a map": Case(TILES, in_group(format={"a": 1}), nothing, ILL, ("format {'a': 1}",)),
    "a group's targets that are a number": Case(TILES, in_group(targets=4, weights={"num_bits": [8]}), nothing, ILL, ("[8] bits",)),
    "a group's weights that are lists": Case(
        TILES, compressed("float-quantized", num_bits=[8], type=["float"], strategy={"a": 1}), nothing, ILL, ("[8] bits",)
    ),
    "a method that is a number": Case(TILES, {"quant_method": 3}, nothing, ILL, ("quantised with 3",)),
    "a tile that is a text": Case(TILES, BLOCK | {"weight_block_size": "128"}, nothing, ILL, ("a pair of integers",)),
    "an algorithm that is a map": Case(TILES, modelopt({"FP8": 1}), nothing, ILL, ("{'FP8': 1}",)),
    # what could only be decoded and quantised again
    "u4 into nvfp4": Case(writers.mlx_affine(bits=4, group=64), mlx(4, 64), nothing, ASK, ("u4g64", "nvfp4"), "nvfp4", "quantization"),
    "groups of 32 into groups of 64": Case(
        writers.mlx_affine(bits=4, group=32), mlx(4, 32), nothing, ASK, ("u4g32", "u4g64"), "u4g64", "quantization"
    ),
    "f16 factors into bf16 ones": Case(
        writers.mlx_affine(bits=4, group=64, leaf=np.float16),
        mlx(4, 64),
        nothing,
        ASK,
        ("u4g64:f16", "bf16 number"),
        "u4g64",
        "quantization",
    ),
    "awq into u4g32": Case(writers.awq(group=32), AWQ, nothing, ASK, ("awq4:g32", "bf16 number"), "u4g32"),
    "rows into tiles": Case(ROWS, WHOLE, nothing, ASK, ("e4m3row", "e4m3tile128"), "e4m3tile128"),
    "tiles into rows": Case(TILES, BLOCK, nothing, ASK, ("e4m3tile128", "e4m3row"), "e4m3row"),
    "tiles of another size": Case(NARROW, {**BLOCK, "weight_block_size": [16, 64]}, nothing, ASK, ("e4m3tile16x64",), "e4m3tile128"),
    "mxfp4 into nvfp4": Case(writers.gpt_oss_mxfp4, MXFP4, nothing, ASK, ("mxfp4", "nvfp4"), "nvfp4"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_or_contradictory_checkpoint_is_refused_before_anything_is_read(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    tensors, _ = case.write("w", MATRIX)
    case.damage(tensors)
    with pytest.raises(PoemError) as caught:
        plan(tmp_path, tensors, case.said, case.wanted, case.key)
    assert caught.value.code == case.code, caught.value.render()
    for text in case.expect:
        assert text in caught.value.render(), caught.value.render()


UNDAMAGED = {name: case for name, case in CASES.items() if case.damage is not nothing and case.wanted == "bf16"}


@pytest.mark.parametrize("name", UNDAMAGED)
def test_without_its_fault_each_checkpoint_is_read(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    tensors, values = case.write("w", MATRIX)
    got = plan(tmp_path, tensors, case.said, key=case.key).weights["w"].planes["data"]
    assert np.array_equal(got, values.astype(np.float32).astype(ml_dtypes.bfloat16))


def test_codes_that_mean_nan_are_kept_and_counted(tmp_path: Path) -> None:
    tensors, _ = TILES("w", MATRIX)
    bytes_of(tensors, "w.weight")[4, 7] = 0x7F
    bytes_of(tensors, "w.weight")[5, 8] = 0xFF
    found = plan(tmp_path, tensors, BLOCK, "e4m3tile128")
    assert "`w.weight`: 2 codes mean NaN" in found.notes
    assert found.weights["w"].planes["code"][4, 7] == 0x7F


def test_tiles_of_another_size_are_decoded_for_a_float_weight(tmp_path: Path) -> None:
    tensors, values = NARROW("w", MATRIX)
    got = plan(tmp_path, tensors, {**BLOCK, "weight_block_size": [16, 64]}).weights["w"].decode()
    assert np.array_equal(got, values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32))
