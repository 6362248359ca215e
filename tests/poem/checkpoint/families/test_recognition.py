"""Quantised families: recognised by their tensors, and values by the published formula of each."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from poem.checkpoint import Checkpoint, Stored, open_checkpoint
from poem.errors import CheckpointError
from poem.importer import plan_import
from tests.poem.checkpoint.files import Tagged, write_checkpoint, write_shards
from tests.poem.importer.fakes import package, pairs, weight

RNG = np.random.default_rng(3)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
N, K = 200, 256
CODES = RNG.integers(0, 256, (N, K), np.uint8) & 0xF7  # no NaN among e4m3 codes
E4M3 = CODES.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
P = "model.layers.0.mlp.down_proj"
L = f"{P}.weight"


def opened(
    folder: Path, tensors: dict[str, np.ndarray | Tagged], quantization: dict[str, Any] | None = None, key: str = "quantization_config"
) -> Checkpoint:
    return open_checkpoint(write_checkpoint(folder, tensors, {key: quantization} if quantization else None))


def found(checkpoint: Checkpoint, name: str = L) -> Stored:
    stored = checkpoint.find(name)
    assert stored is not None, f"{name} is not found"
    assert not stored.problem, stored.problem
    return stored


def values(checkpoint: Checkpoint, name: str = L) -> np.ndarray:
    return checkpoint.tensor(name).decode(dtype=np.float64)


# -- FP8 -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", ["weight_scale_inv", "weight_scale"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("shape", "word"),
    [((), "e4m3tensor"), ((1,), "e4m3tensor"), ((1, 1), "e4m3tensor"), ((N,), "e4m3row"), ((N, 1), "e4m3row"), ((2, 2), "e4m3tile128"),
     ((2, 1, 2, 1), "e4m3tile128")],
)  # fmt: skip
def test_fp8_scales_multiply_and_their_shape_tells_tensor_row_or_tile(
    suffix: str, dtype: type, shape: tuple[int, ...], word: str, tmp_path: Path
) -> None:
    scale = RNG.uniform(0.5, 2, shape).astype(dtype)
    checkpoint = opened(tmp_path, {L: ("F8_E4M3", CODES), f"{P}.{suffix}": scale})
    wide = np.asarray(scale, np.float64)
    by_element = {
        "e4m3tensor": lambda: wide.reshape(-1)[0],
        "e4m3row": lambda: wide.reshape(N, 1),
        "e4m3tile128": lambda: np.repeat(np.repeat(wide.reshape(2, 2), 128, 0), 128, 1)[:N, :K],
    }[word]()
    stored = found(checkpoint)
    assert (stored.word, stored.shape, set(stored.tensors)) == (word, (N, K), {L, f"{P}.{suffix}"})
    assert np.array_equal(values(checkpoint), E4M3 * by_element)


def test_fp8_bank_without_weight_in_its_name_joins_suffixes_with_an_underscore(tmp_path: Path) -> None:
    codes = np.stack([CODES, CODES])
    checkpoint = opened(
        tmp_path,
        {
            "experts.down_proj": ("F8_E4M3", codes),
            "experts.down_proj_scale_inv": np.ones((2, 2, 2), np.float32),
            "experts.down_proj_input_scale": np.ones(1, np.float32),
        },
    )
    stored = found(checkpoint, "experts.down_proj")
    assert (stored.word, len(stored.tensors)) == ("e4m3tile128", 3)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 1, 1)])
@pytest.mark.parametrize("wanted", ["bf16", "e4m3row", "e4m3tile128a8"])
def test_every_entry_of_an_fp8_bank_may_have_one_scale(shape: tuple[int, ...], wanted: str, tmp_path: Path) -> None:
    codes, scale = RNG.integers(0, 0x7F, (3, N, K), np.uint8), RNG.uniform(0.5, 2, shape).astype(np.float32)
    checkpoint = opened(tmp_path, {"experts.down_proj": ("F8_E4M3", codes), "experts.down_proj_scale": scale})
    assert found(checkpoint, "experts.down_proj").word == "e4m3tensor"
    want = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale.astype(np.float64).reshape(3, 1, 1)
    assert np.array_equal(values(checkpoint, "experts.down_proj"), want)
    held = package({"w": weight((3, N, K), wanted)}, pairs(("experts.down_proj", "w")), dtype=wanted)
    plan = plan_import(checkpoint, [held], deployment=next(iter(held.deployments)))
    rounded = want.astype(np.float32)
    rounded = rounded.astype(ml_dtypes.bfloat16).astype(np.float32) if wanted == "bf16" else rounded
    assert plan.actions["decoded" if wanted == "bf16" else "copied"] == 1
    assert np.array_equal(plan.weights["w"].decode(), rounded)


def test_a_scale_may_lie_in_another_shard_than_its_codes(tmp_path: Path) -> None:
    scale = RNG.uniform(0.5, 2, (2, 2)).astype(np.float32)
    stored = found(open_checkpoint(write_shards(tmp_path, [{L: ("F8_E4M3", CODES)}, {f"{P}.weight_scale_inv": scale}])))
    assert (stored.word, set(stored.tensors)) == ("e4m3tile128", {L, f"{P}.weight_scale_inv"})
    assert np.array_equal(stored.read(0, N).decode(dtype=np.float64), E4M3 * np.repeat(np.repeat(scale, 128, 0), 128, 1)[:N, :K])


def test_static_activation_scales_count_as_read_with_their_weight(tmp_path: Path) -> None:
    checkpoint = opened(
        tmp_path, {L: ("F8_E4M3", CODES), f"{P}.weight_scale": np.float32(1).reshape(()), f"{P}.input_scale": np.ones(1, np.float32)}
    )
    assert f"{P}.input_scale" in found(checkpoint).tensors


def test_codes_are_views_of_the_file(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, {L: ("F8_E4M3", CODES), f"{P}.weight_scale": np.float32(1).reshape(())})
    code = checkpoint.tensor(L).planes["code"]
    assert not code.flags.owndata
    assert not code.flags.writeable


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({L: ("F8_E4M3", CODES)}, "without their scale"),
        ({L: ("F8_E4M3", CODES), f"{P}.weight_scale": np.ones((3, 5), np.float32)}, "neither one, nor one a row, nor one a tile"),
        ({L: ("F8_E4M3", CODES), f"{P}.weight_scale": np.ones((N, 1), np.int32)}, "I32 scales"),
        ({L: ("F8_E4M3FNUZ", CODES), f"{P}.weight_scale": np.ones(1, np.float32)}, "F8_E4M3FNUZ"),
        ({L: ("F8_E5M2", CODES), f"{P}.weight_scale": np.ones(1, np.float32)}, "F8_E5M2 codes are not read as weights"),
    ],
)
def test_fp8_that_cannot_be_read_says_what_is_wrong(tensors: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        opened(tmp_path, tensors).tensor(L)
    assert caught.value.code == "import.illegible"
    assert said in caught.value.message, caught.value.render()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_scale_that_is_not_finite_is_refused_with_tensor_and_index(bad: float, tmp_path: Path) -> None:
    scale = np.ones((2, 2), np.float32)
    scale[1, 0] = bad
    with pytest.raises(CheckpointError) as caught:
        opened(tmp_path, {L: ("F8_E4M3", CODES), f"{P}.weight_scale_inv": scale}).tensor(L)
    assert caught.value.code == "import.bad-scale"
    assert f"`{P}.weight_scale_inv` at [1, 0]" in caught.value.found


# -- NVFP4 ---------------------------------------------------------------------------------------
PACKED = RNG.integers(0, 256, (N, K // 2), np.uint8)
NIBBLES = np.stack([PACKED & 15, PACKED >> 4], -1).reshape(N, K)
BLOCK_SCALES = RNG.integers(1, 0x78, (N, K // 16), np.uint8)
OUTER = np.float32(0.0123)
NVFP4 = E2M1[NIBBLES] * np.repeat(BLOCK_SCALES.view(ml_dtypes.float8_e4m3fn).astype(np.float64), 16, 1) * np.float64(OUTER)


def test_one_weight_as_modelopt_and_as_compressed_tensors_nvfp4_has_the_same_codes(tmp_path: Path) -> None:
    outer = np.float32(2.0**-7)  # its reciprocal is exact
    modelopt = opened(tmp_path / "a", {L: PACKED, f"{P}.weight_scale": ("F8_E4M3", BLOCK_SCALES), f"{P}.weight_scale_2": outer.reshape(())})
    packed = opened(
        tmp_path / "b",
        {
            f"{P}.weight_packed": PACKED,
            f"{P}.weight_scale": ("F8_E4M3", BLOCK_SCALES),
            f"{P}.weight_global_scale": np.array([128], np.float32),
        },
    )
    assert found(modelopt).word == found(packed).word == "nvfp4"
    for path, plane in modelopt.tensor(L).planes.items():
        assert np.array_equal(plane, packed.tensor(L).planes[path]), path


def test_nvfp4_values_are_code_times_block_scale_times_tensor_scale(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, {L: PACKED, f"{P}.weight_scale": ("F8_E4M3", BLOCK_SCALES), f"{P}.weight_scale_2": OUTER.reshape(())})
    assert np.array_equal(values(checkpoint), NVFP4)


def test_a_reciprocal_of_zero_is_a_bad_scale(tmp_path: Path) -> None:
    tensors = {
        f"{P}.weight_packed": PACKED,
        f"{P}.weight_scale": ("F8_E4M3", BLOCK_SCALES),
        f"{P}.weight_global_scale": np.zeros(1, np.float32),
    }
    with pytest.raises(CheckpointError) as caught:
        opened(tmp_path, tensors).tensor(L)
    assert caught.value.code == "import.bad-scale"


def test_a_block_scale_of_nan_is_a_bad_scale(tmp_path: Path) -> None:
    scales = BLOCK_SCALES.copy()
    scales[5, 7] = 0xFF
    with pytest.raises(CheckpointError) as caught:
        opened(tmp_path, {L: PACKED, f"{P}.weight_scale": ("F8_E4M3", scales), f"{P}.weight_scale_2": OUTER.reshape(())}).tensor(L)
    assert caught.value.code == "import.bad-scale"
    assert "[5, 7]" in caught.value.found


def test_nvfp4_that_scales_its_input_is_refused(tmp_path: Path) -> None:
    tensors = {
        L: PACKED,
        f"{P}.weight_scale": ("F8_E4M3", BLOCK_SCALES),
        f"{P}.weight_scale_2": OUTER.reshape(()),
        f"{P}.pre_quant_scale": np.ones(K, np.float32),
    }
    with pytest.raises(CheckpointError, match="pre_quant_scale"):
        opened(tmp_path, tensors).tensor(L)


# -- MXFP4 ---------------------------------------------------------------------------------------
def test_mxfp4_banks_keep_their_bytes(tmp_path: Path) -> None:
    blocks, scales = RNG.integers(0, 256, (2, 6, 4, 16), np.uint8), RNG.integers(100, 150, (2, 6, 4), np.uint8)
    checkpoint = opened(tmp_path, {"mlp.experts.down_proj_blocks": blocks, "mlp.experts.down_proj_scales": scales})
    stored = found(checkpoint, "mlp.experts.down_proj")
    assert (stored.word, stored.shape) == ("mxfp4", (2, 6, 128))
    nibbles = np.stack([blocks & 15, blocks >> 4], -1).reshape(2, 6, 128)
    expected = E2M1[nibbles] * np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, -1)
    assert np.array_equal(values(checkpoint, "mlp.experts.down_proj"), expected)


def test_compressed_tensors_mxfp4_is_read(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, {f"{P}.weight_packed": PACKED, f"{P}.weight_scale": np.full((N, K // 32), 127, np.uint8)})
    assert found(checkpoint).word == "mxfp4"
    assert np.array_equal(values(checkpoint), E2M1[NIBBLES])


# -- MLX -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("leaf", [ml_dtypes.bfloat16, np.float16])
def test_mlx_words_are_codes_in_order_and_configuration_tells_bits_and_group(bits: int, group: int, leaf: type, tmp_path: Path) -> None:
    codes = RNG.integers(0, 2**bits, (6, 256))
    words = np.zeros((6, 256 * bits // 32), np.uint32)
    for i in range(256):
        words[:, i * bits // 32] |= codes[:, i].astype(np.uint32) << np.uint32(i * bits % 32)
    scale, bias = (RNG.uniform(0.5, 1, (6, 256 // group)).astype(leaf) for _ in range(2))
    checkpoint = opened(
        tmp_path,
        {L: words, f"{P}.scales": scale, f"{P}.biases": bias},
        {"bits": 16, "group_size": 1, P: {"bits": bits, "group_size": group}},
        "quantization",
    )
    stored = found(checkpoint)
    assert stored.word == f"u{bits}g{group}" + ("" if leaf is ml_dtypes.bfloat16 else ":f16")
    wide = [np.repeat(factor.astype(np.float64), group, 1) for factor in (scale, bias)]
    assert np.array_equal(values(checkpoint), codes * wide[0] + wide[1])
    assert not checkpoint.tensor(L).planes["code"].flags.owndata


def test_mlx_words_without_configuration_say_that_it_is_missing(tmp_path: Path) -> None:
    tensors = {L: np.zeros((4, 8), np.uint32), f"{P}.scales": np.ones((4, 1), np.float16), f"{P}.biases": np.ones((4, 1), np.float16)}
    with pytest.raises(CheckpointError, match="quantization") as caught:
        opened(tmp_path, tensors).tensor(L)
    assert caught.value.code == "import.illegible"


@pytest.mark.parametrize(("group", "word"), [(32, "mxfp4"), (16, "nvfp4")])
def test_mlx_words_without_biases_are_microscaled(group: int, word: str, tmp_path: Path) -> None:
    scale = np.full((N, K // group), 127 if group == 32 else 0x38, np.uint8)
    checkpoint = opened(tmp_path, {L: PACKED.view(np.uint32), f"{P}.scales": scale})
    assert found(checkpoint).word == word
    assert np.array_equal(values(checkpoint), E2M1[NIBBLES])


@pytest.mark.parametrize(("group", "word"), [(32, "mxfp4"), (16, "nvfp4")])
def test_banks_of_mlx_words_are_microscaled(group: int, word: str, tmp_path: Path) -> None:
    codes, scale = np.stack([PACKED, PACKED[::-1]]), np.full((2, N, K // group), 127 if group == 32 else 0x38, np.uint8)
    checkpoint = opened(tmp_path, {L: codes.view(np.uint32), f"{P}.scales": scale})
    assert (found(checkpoint).word, found(checkpoint).shape) == (word, (2, N, K))
    assert np.array_equal(values(checkpoint), np.stack([E2M1[NIBBLES], E2M1[NIBBLES[::-1]]]))


# -- words, by hand --------------------------------------------------------------------------------
def filled(word: int, shape: tuple[int, ...], dtype: type = np.uint32) -> np.ndarray:
    return np.full(shape, word, np.uint32).view(dtype)


def test_a_word_of_awq_holds_eight_outputs_in_its_own_order(tmp_path: Path) -> None:
    tensors = {
        f"{P}.qweight": filled(0x76543210, (4, 1), np.int32),
        f"{P}.qzeros": filled(0x33333333, (1, 1), np.int32),
        f"{P}.scales": np.full((1, 8), 0.25, np.float16),
    }
    said = {"quant_method": "awq", "bits": 4, "group_size": 4, "zero_point": True, "version": "gemm"}
    outputs = [-0.75, 0.25, -0.5, 0.5, -0.25, 0.75, 0, 1]  # codes 0 4 1 5 2 6 3 7
    assert values(opened(tmp_path, tensors, said)).tolist() == [[value] * 4 for value in outputs]


def test_awq_without_zero_points_has_8_everywhere(tmp_path: Path) -> None:
    tensors = {f"{P}.qweight": filled(0x76543210, (4, 1), np.int32), f"{P}.scales": np.full((1, 8), 0.25, np.float16)}
    said = {"quant_method": "awq", "bits": 4, "group_size": 4, "zero_point": False, "version": "gemm"}
    outputs = [(code - 8) * 0.25 for code in (0, 4, 1, 5, 2, 6, 3, 7)]
    assert values(opened(tmp_path, tensors, said)).tolist() == [[value] * 4 for value in outputs]


@pytest.mark.parametrize(("version", "first"), [("gptq", -4), ("gptq_v2", -3.5)])
def test_a_word_of_gptq_holds_eight_inputs_in_order(version: str, first: float, tmp_path: Path) -> None:
    tensors = {
        f"{P}.qweight": filled(0x76543210, (1, 8), np.int32),
        f"{P}.qzeros": filled(0x77777777, (1, 1), np.int32),
        f"{P}.scales": np.full((1, 8), 0.5, np.float16),
    }
    said = {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": False, "checkpoint_format": version}
    assert values(opened(tmp_path, tensors, said)).tolist() == [[first + 0.5 * k for k in range(8)]] * 8


@pytest.mark.parametrize(
    ("words", "bits", "code"),
    [([0x76543210, 0xFEDCBA98] * 2, 4, "1032547698badcfe" * 2), ([0x03020100, 0x07060504] * 4, 8, "0001020304050607" * 4)],
)
def test_the_bytes_of_mlx_words_are_packed_codes(words: list[int], bits: int, code: str, tmp_path: Path) -> None:
    factors = {f"{P}.{name}": np.array([[value]], ml_dtypes.bfloat16) for name, value in (("scales", 1), ("biases", 0))}
    checkpoint = opened(tmp_path, {L: np.array([words], "<u4"), **factors}, {"bits": bits, "group_size": 32}, "quantization")
    assert checkpoint.tensor(L).planes["code"].tobytes().hex() == code
    assert values(checkpoint).tolist() == [[*range(16)] * 2 if bits == 4 else [*range(8)] * 4]
