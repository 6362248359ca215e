"""Checkpoints that other projects' own code writes are read as their own code reads them."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance.check import check
from conformance.options import Options
from poem.checkpoint import open_checkpoint
from poem.importer import plan_import
from poem.importer.plan import ImportPlan
from tests.poem.checkpoint.families import writers
from tests.poem.checkpoint.families.test_minis import GOLDEN, LANDINGS, QUANTISED, ROOT, package
from tests.poem.checkpoint.files import write_checkpoint

pytestmark = [pytest.mark.original, pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra `oracles`")]
LLAMA = ROOT / "models" / "llama_3.poem"
# Schemes of compressed-tensors, by its own names for them, and the dtypes that hold their codes as they are.
PRESETS = {
    "FP8": ("e4m3row", "e4m3tile128", "e4m3tile128a8"),
    "FP8_DYNAMIC": ("e4m3row",),
    "FP8_BLOCK": ("e4m3tile128", "e4m3tile128a8"),
    "NVFP4": ("nvfp4",),
    "NVFP4A16": ("nvfp4",),
    "MXFP4": ("mxfp4",),
    "MXFP4A16": ("mxfp4",),
    "W4A16": ("u4g64", "u4g32"),
    "W8A16": ("u8g64",),
    "W4A16_ASYM": (),
}


def bf16(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def planned(folder: Path, dtype: str) -> ImportPlan:
    return plan_import(open_checkpoint(folder), [package()], deployment=f"llama31-mini-{dtype}-kv-bf16")


# -- compressed-tensors ------------------------------------------------------------------------------
def extremes(weight: Any, scheme: Any) -> tuple[Any, Any]:
    """The least and the greatest weight that share a scale."""
    if scheme.strategy == "tensor":
        return weight.min().reshape(1), weight.max().reshape(1)
    if scheme.strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if scheme.strategy == "block":  # no matrix of the mini is larger than a block
        return weight.min().reshape(1, 1), weight.max().reshape(1, 1)
    runs = weight.unflatten(1, (-1, scheme.group_size))
    return runs.amin(-1), runs.amax(-1)


def compressed_mini(folder: Path, preset: str, *ignored: str) -> dict[str, np.ndarray]:
    """Write the mini in a scheme with all that compressed-tensors has for it; returns the weights that it decompresses, bf16."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
    from safetensors.torch import save_file
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(GOLDEN)
    scheme = preset_name_to_scheme(preset, ["Linear"])
    if scheme.weights.group_size == 128:
        scheme.weights.group_size = 64  # the mini is narrow
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head", *ignored]))
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            weight, whole = module.weight.detach(), None
            if hasattr(module, "weight_global_scale"):
                whole = module.weight_global_scale.data = generate_gparam(weight.min(), weight.max())
            scale, zero = calculate_qparams(*extremes(weight, scheme.weights), scheme.weights, global_scale=whole)
            module.weight_scale.data = scale.to(module.weight_scale.dtype)
            if hasattr(module, "weight_zero_point"):
                module.weight_zero_point.data = zero.to(module.weight_zero_point.dtype)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text((GOLDEN / "config.json").read_text())
    compressor.update_config(str(folder))
    compressor.decompress_model(model)
    return {name: tensor.float().numpy() for name, tensor in model.state_dict().items() if name.endswith(".weight")}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_mini_of_compressed_tensors_has_the_values_that_it_decompresses(preset: str, tmp_path: Path) -> None:
    own = compressed_mini(tmp_path / preset, preset, r"re:model\.layers\.1\..*")
    config = json.loads((tmp_path / preset / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors"
    for dtype in ("bf16", *PRESETS[preset]):
        plan = planned(tmp_path / preset, dtype)
        for name, parts in LANDINGS.items():
            assert plan.landings[f"layers.0.{name}"].action == ("decoded" if dtype == "bf16" else "copied")
            want = np.concatenate([own[f"{QUANTISED}{part}_proj.weight"] for part in parts])
            np.testing.assert_array_equal(bf16(plan.weights[f"layers.0.{name}"].decode()), want, err_msg=f"{dtype}: {name}")


def test_a_mini_of_compressed_tensors_computes_what_transformers_computes_from_it(tmp_path: Path) -> None:
    """4-bit codes that are kept as u4g64, and the class over the weights that compressed-tensors decompresses: every layer agrees."""
    compressed_mini(tmp_path / "W4A16", "W4A16")
    options = Options(str(LLAMA), deployment="llama31-mini-u4g64-kv-bf16", checkpoint=str(tmp_path / "W4A16"), against="transformers")
    report = check(options)
    assert [(comparison.mode, comparison.verdict) for comparison in report.comparisons] == [("exact", "agrees"), ("native", "agrees")]


def test_awq_words_are_what_compressed_tensors_converts_them_to(tmp_path: Path) -> None:
    import torch
    from compressed_tensors.entrypoints.convert.converters import AutoAWQConverter

    tensors, _ = writers.awq(group=32)("w", np.random.default_rng(6).standard_normal((40, 128)).astype(np.float32))
    said = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    folder = write_checkpoint(tmp_path, tensors, {"quantization_config": said})
    converter = AutoAWQConverter.from_autoawq_config(said)
    held = [torch.tensor(tensors[f"w.{part}"]) for part in ("qweight", "scales", "qzeros")]
    codes, scales, zeros = (tensor.double().numpy() for tensor in converter._convert_gemm_module(*held))
    want = (codes - np.repeat(zeros, 32, 1)) * np.repeat(scales, 32, 1)
    np.testing.assert_array_equal(open_checkpoint(folder).tensor("w.weight").decode(dtype=np.float64), want)


# -- transformers ------------------------------------------------------------------------------------
def numbers(tensor: Any) -> Any:
    """A torch tensor as a file holds it."""
    import torch

    tags = {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e8m0fnu: "F8_E8M0"}
    return (tags[tensor.dtype], tensor.view(torch.uint8).numpy()) if tensor.dtype in tags else tensor.numpy()


@pytest.mark.parametrize("scale_fmt", ["float", "ue8m0"])
def test_fp8_blocks_of_transformers(scale_fmt: str, tmp_path: Path) -> None:
    import torch
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    said = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "scale_fmt": scale_fmt}
    matrix = torch.tensor(np.random.default_rng(1).standard_normal((256, 384)), dtype=torch.float32)
    held = Fp8Quantize(SimpleNamespace(quantization_config=SimpleNamespace(**said)))._quantize_one("w.weight", matrix)
    assert held["w.weight_scale_inv"].shape == (2, 3)
    folder = write_checkpoint(tmp_path, {name: numbers(tensor) for name, tensor in held.items()}, {"quantization_config": said})
    want = Fp8Dequantize(None)._dequantize_one(held["w.weight"], held["w.weight_scale_inv"], torch.float32).numpy()
    stored = open_checkpoint(folder).find("w.weight")
    assert stored is not None
    assert (stored.word, stored.problem) == ("e4m3tile128", "")
    np.testing.assert_array_equal(stored.read(0, 256).decode(), want)


def test_mxfp4_banks_of_gpt_oss_as_transformers_reads_them(tmp_path: Path) -> None:
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    draw = np.random.default_rng(2)
    blocks, scales = draw.integers(0, 256, (3, 6, 4, 16), np.uint8), draw.integers(100, 150, (3, 6, 4), np.uint8)
    folder = write_checkpoint(tmp_path, {"experts.down_proj_blocks": blocks, "experts.down_proj_scales": scales})
    own = convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32).numpy()  # [E, in, out]
    np.testing.assert_array_equal(open_checkpoint(folder).tensor("experts.down_proj").decode(), own.swapaxes(1, 2))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_affine_words_as_transformers_reads_them_for_metal(bits: int, tmp_path: Path) -> None:
    """The layout of MLX, whose own code needs its own library; transformers calls the biases `qbiases`."""
    import torch
    from transformers.integrations.metal_quantization import _affine_dequantize_tensor, _affine_quantize_tensor

    matrix = torch.tensor(np.random.default_rng(bits).standard_normal((8, 256)), dtype=torch.float32)
    words, scales, biases = _affine_quantize_tensor(matrix, 64, bits)
    held = {"w.weight": words.numpy(), "w.scales": scales.numpy(), "w.biases": biases.numpy()}
    folder = write_checkpoint(tmp_path, held, {"quantization": {"bits": bits, "group_size": 64}})
    want = _affine_dequantize_tensor(words, scales, biases, 64, bits).numpy()
    np.testing.assert_array_equal(open_checkpoint(folder).tensor("w.weight").decode(), want)
