"""What a configuration says of each module: where it is written, which modules it excludes, several schemes in one checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from poem.checkpoint import open_checkpoint
from poem.checkpoint.families.config import quantisation_of
from tests.poem.checkpoint.families import writers
from tests.poem.checkpoint.files import write_checkpoint

FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
ATTENTION, MLP, HEAD = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj", "lm_head"
MATRIX = np.random.default_rng(5).standard_normal((40, 128)).astype(np.float32)


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": FP8},
        {"compression_config": FP8},
        {"text_config": {"quantization_config": FP8}},
        {"quantization_config": {}, "text_config": {"compression_config": FP8}},
    ],
)
def test_a_configuration_is_found_where_projects_write_it(config: Mapping[str, Any]) -> None:
    assert quantisation_of(config).module(MLP).said == "quant_method fp8 in blocks of 128 by 128"


def test_without_a_configuration_nothing_is_said_of_a_module() -> None:
    assert not quantisation_of({"hidden_size": 4, "quantization_config": None}).module(MLP).said


@pytest.mark.parametrize(
    ("listed", "excluded", "kept"),
    [
        ("lm_head", ["lm_head", "model.lm_head", "lm_head.1"], ["lm_head_2", "my_lm_head"]),
        ("lm_head.weight", ["lm_head"], ["model"]),
        ("model.layers.1", ["model.layers.1", "model.layers.1.mlp.up_proj"], ["model.layers.10.mlp.up_proj", "model.layers"]),
        ("mlp.gate", ["model.layers.3.mlp.gate"], ["model.layers.3.mlp.gate_proj"]),
        ("model.layers.1.*", ["model.layers.1.mlp.up_proj"], ["model.layers.10.mlp.up_proj"]),
        ("*self_attn*", ["model.layers.3.self_attn.q_proj"], ["model.layers.3.mlp.up_proj"]),
        ("model.*.mlp.gate", ["model.layers.3.mlp.gate", "model.layers.3.mlp.gate.e"], ["model.layers.3.mlp.gate_proj"]),
        ("re:.*lm_head", ["lm_head", "model.lm_head"], ["model.head"]),
        (r"re:model\.layers\.1\..*", ["model.layers.1.mlp.up_proj"], ["model.layers.10.mlp.up_proj", "xmodel.layers.1.y"]),
        ("re:(", ["("], ["model.layers.1.mlp.up_proj"]),
    ],
)
@pytest.mark.parametrize(
    ("said", "key"),
    [
        (FP8, "modules_to_not_convert"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "exclude_modules"),
        ({"quant_method": "compressed-tensors", "format": "dense", "config_groups": {"g": {"targets": ["Linear"]}}}, "ignore"),
    ],
)
def test_a_list_excludes_names_what_lies_below_them_globs_and_patterns(
    said: Mapping[str, Any], key: str, listed: str, excluded: list[str], kept: list[str]
) -> None:
    found = quantisation_of({"quantization_config": {**said, key: ["unrelated", listed]}})
    assert {module: found.module(module).ignored for module in [*excluded, *kept]} == dict.fromkeys(excluded, True) | dict.fromkeys(
        kept, False
    )


# -- several schemes in one checkpoint -----------------------------------------------------------------
CHANNEL, TENSOR = writers.fp8(rows=1, columns=None), writers.fp8(rows=None, columns=None, shape=())
MODELOPT: dict[str, Any] = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {ATTENTION: {"quant_algo": "FP8"}, MLP: {"quant_algo": "NVFP4", "group_size": 16}},
}
FLOAT = {"type": "float", "symmetric": True}
GROUPS = {
    "attention": {"targets": ["re:.*self_attn.*"], "format": "float-quantized", "weights": {"num_bits": 8, "strategy": "channel"} | FLOAT},
    "rest": {"targets": ["Linear"], "format": "nvfp4-pack-quantized", "weights": {"num_bits": 4, "group_size": 16} | FLOAT},
}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": GROUPS, "ignore": [HEAD]}
MIXED = {
    "modelopt": (MODELOPT, TENSOR, writers.modelopt_nvfp4, "e4m3tensor"),
    "compressed-tensors": (COMPRESSED, CHANNEL, writers.compressed_tensors_nvfp4, "e4m3row"),
}


@pytest.mark.parametrize("name", MIXED)
def test_every_module_is_read_by_its_own_scheme(name: str, tmp_path: Path) -> None:
    said, fp8, nvfp4, word = MIXED[name]
    (attention, want), (mlp, other) = fp8(ATTENTION, MATRIX), nvfp4(MLP, MATRIX)
    plain = {f"{HEAD}.weight": MATRIX.astype(ml_dtypes.bfloat16)}
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, attention | mlp | plain, {"quantization_config": said}))
    assert [checkpoint.stored(f"{module}.weight") for module in (ATTENTION, MLP, HEAD)] == [word, "nvfp4", "bf16"]
    for module, values in ((ATTENTION, want), (MLP, other)):
        np.testing.assert_array_equal(checkpoint.tensor(f"{module}.weight").decode(), values.astype(np.float32))


@pytest.mark.parametrize("name", MIXED)
def test_a_module_that_is_stored_by_the_scheme_of_another_is_refused(name: str, tmp_path: Path) -> None:
    said, fp8, nvfp4, _ = MIXED[name]
    held = nvfp4(ATTENTION, MATRIX)[0] | fp8(MLP, MATRIX)[0]
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, held, {"quantization_config": said}))
    for module, family in ((ATTENTION, "nvfp4"), (MLP, "e4m3")):
        stored = checkpoint.find(f"{module}.weight")
        assert stored is not None
        assert "where the configuration says" in stored.problem, stored
        assert family in stored.problem


@pytest.mark.parametrize(
    ("algorithm", "write", "word"),
    [
        ("FP8", TENSOR, "e4m3tensor"),
        ("FP8_PER_CHANNEL_PER_TOKEN", writers.fp8(rows=1, columns=None, shape=(40,)), "e4m3row"),
        ("FP8_PB_WO", writers.fp8(rows=128, columns=128, shape=(1, 1, 1, 1)), "e4m3tile128"),
        ("NVFP4", writers.modelopt_nvfp4, "nvfp4"),
    ],
)
def test_each_algorithm_of_modelopt(algorithm: str, write: writers.Writer, word: str, tmp_path: Path) -> None:
    tensors, values = write("w", MATRIX)
    said = {"quant_method": "modelopt", "quant_algo": algorithm}
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors, {"quantization_config": said}))
    assert checkpoint.stored("w.weight") == word
    np.testing.assert_array_equal(checkpoint.tensor("w.weight").decode(), values.astype(np.float32))
