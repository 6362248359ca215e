"""Weights that compressed-tensors' own code packs are read as its own code unpacks them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poem.checkpoint import open_checkpoint
from tests.poem.checkpoint.files import write_checkpoint

N, K = 24, 128


def numbers(tensor: Any) -> Any:
    """A torch tensor as a file holds it."""
    import torch

    if tensor.dtype == torch.float8_e4m3fn:
        return "F8_E4M3", tensor.view(torch.uint8).numpy()
    if tensor.dtype == torch.bfloat16:
        return "BF16", tensor.view(torch.int16).numpy()
    return tensor.numpy()


@pytest.mark.original
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_packed_integers(bits: int, symmetric: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    helpers = pytest.importorskip("compressed_tensors.compressors")
    draw = np.random.default_rng(bits)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    codes = torch.tensor(draw.integers(low, high, (N, K)), dtype=torch.int8)
    zeros = torch.tensor(draw.integers(low, high, (N, K // 32)), dtype=torch.int8)
    scales = torch.tensor(draw.uniform(0.5, 1, (N, K // 32))).to(torch.bfloat16)
    held = {
        "w.weight_packed": helpers.pack_to_int32(codes, bits),
        "w.weight_scale": scales,
        "w.weight_shape": torch.tensor([N, K]),
    }
    if not symmetric:
        held["w.weight_zero_point"] = helpers.pack_to_int32(zeros, bits, packed_dim=0)
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": 32}
    said = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"g": {"targets": ["Linear"], "weights": weights}},
    }
    folder = write_checkpoint(tmp_path, {name: numbers(tensor) for name, tensor in held.items()}, {"quantization_config": said})
    unpacked = helpers.unpack_from_int32(held["w.weight_packed"], bits, torch.Size([N, K])).numpy().astype(np.float64)
    offset = 0 if symmetric else np.repeat(zeros.numpy().astype(np.float64), 32, 1)
    want = (unpacked - offset) * np.repeat(scales.float().numpy().astype(np.float64), 32, 1)
    assert np.array_equal(open_checkpoint(folder).tensor("w.weight").decode(dtype=np.float64), want)


@pytest.mark.original
def test_packed_4_bit_floats_of_nvfp4(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    helpers = pytest.importorskip("compressed_tensors.compressors")
    draw = np.random.default_rng(9)
    values = torch.tensor(draw.choice([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6], (N, K)), dtype=torch.bfloat16)
    scales = torch.tensor(draw.uniform(1, 400, (N, K // 16)), dtype=torch.float32).to(torch.float8_e4m3fn)
    held = {
        "w.weight_packed": helpers.pack_fp4_to_uint8(values),
        "w.weight_scale": scales,
        "w.weight_global_scale": torch.tensor([640.0]),
    }
    folder = write_checkpoint(tmp_path, {name: numbers(tensor) for name, tensor in held.items()})
    own = helpers.unpack_fp4_from_uint8(held["w.weight_packed"], N, K, dtype=torch.float32).numpy()
    assert np.array_equal(own, values.float().numpy())
    want = (own * np.repeat(scales.float().numpy(), 16, 1)) * (np.float32(1) / np.float32(640))
    assert np.array_equal(open_checkpoint(folder).tensor("w.weight").decode(), want)
