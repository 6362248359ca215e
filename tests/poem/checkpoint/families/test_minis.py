"""A small Llama written as each family publishes it is imported to the family's own values, and runs.

The first layer is quantised, the second is excluded as each family's configuration says so.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from interp import Session
from poem.batch import Chunk
from poem.checkpoint import open_checkpoint
from poem.errors import CheckpointError, PoemErrors
from poem.importer import plan_import
from poem.importer.plan import ImportPlan
from poem.package import Package, load_package
from tests.poem.checkpoint.families import writers
from tests.poem.checkpoint.files import write_checkpoint

ROOT = Path(__file__).parents[4]
GOLDEN = ROOT / "models" / "goldens" / "llama_3" / "llama31-mini"
EXCLUDED = ["lm_head", "model.layers.1"]
QUANTISED = "model.layers.0."
PLAIN_MODULES = [
    f"model.layers.1.{part}_proj" for part in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
]
LANDINGS = {
    "q": ("self_attn.q",),
    "k": ("self_attn.k",),
    "v": ("self_attn.v",),
    "o": ("self_attn.o",),
    "gate_up": ("mlp.gate", "mlp.up"),
    "down": ("mlp.down",),
}


class Family(NamedTuple):
    """How a checkpoint of a family is written, and what config.json says. lossless: dtypes that hold its codes and scales as they are."""

    write: writers.Writer
    said: Mapping[str, Any]
    lossless: tuple[str, ...] = ()
    key: str = "quantization_config"


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    ignored = ["lm_head", r"re:model\.layers\.1\..*"]
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}, "ignore": ignored}


def modelopt(algorithm: str, **more: Any) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, "exclude_modules": ["lm_head", "model.layers.1*"], **more}


def mlx(bits: int, group: int, **more: Any) -> dict[str, Any]:
    return {"bits": bits, "group_size": group, **more, **dict.fromkeys(PLAIN_MODULES, False)}


def gptq(**more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False, **more}


BLOCK = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": EXCLUDED,
}
WHOLE = {"quant_method": "fp8", "activation_scheme": "static", "modules_to_not_convert": EXCLUDED}
TILES = {"rows": 128, "columns": 128, "suffix": "weight_scale_inv"}
FP8_DTYPES = ("e4m3tile128", "e4m3tile128a8")
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}

FAMILIES = {
    "fp8 blocks, f32 scales": Family(writers.fp8(**TILES), BLOCK, FP8_DTYPES),
    "fp8 blocks, bf16 scales": Family(writers.fp8(**TILES, leaf="bf16"), BLOCK, FP8_DTYPES),
    "fp8 blocks, e8m0 scales": Family(writers.fp8(**TILES, leaf="e8m0"), BLOCK | {"scale_fmt": "ue8m0"}, FP8_DTYPES),
    "fp8 per tensor": Family(writers.fp8(rows=None, columns=None, shape=()), WHOLE, (*FP8_DTYPES, "e4m3row")),
    "compressed-tensors fp8 tensor": Family(
        writers.fp8(rows=None, columns=None, shape=(1,)),
        compressed("float-quantized", **FLOAT8, strategy="tensor"),
        (*FP8_DTYPES, "e4m3row"),
    ),
    "compressed-tensors fp8 channel": Family(
        writers.fp8(rows=1, columns=None), compressed("float-quantized", **FLOAT8, strategy="channel"), ("e4m3row",)
    ),
    "compressed-tensors fp8 block": Family(
        writers.fp8(rows=128, columns=128),
        compressed("float-quantized", **FLOAT8, strategy="block", block_structure=[128, 128]),
        FP8_DTYPES,
    ),
    "modelopt fp8": Family(writers.fp8(rows=None, columns=None, shape=()), modelopt("FP8"), FP8_DTYPES),
    "modelopt nvfp4": Family(writers.modelopt_nvfp4, modelopt("NVFP4", group_size=16), ("nvfp4",)),
    "compressed-tensors nvfp4": Family(
        writers.compressed_tensors_nvfp4,
        compressed("nvfp4-pack-quantized", num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16),
        ("nvfp4",),
    ),
    "mlx nvfp4": Family(writers.mlx_nvfp4, mlx(4, 16, mode="nvfp4"), ("nvfp4",), "quantization"),
    "gpt-oss mxfp4": Family(writers.gpt_oss_mxfp4, {"quant_method": "mxfp4", "modules_to_not_convert": EXCLUDED}, ("mxfp4",)),
    "compressed-tensors mxfp4": Family(
        writers.compressed_tensors_mxfp4,
        compressed("mxfp4-pack-quantized", num_bits=4, type="float", symmetric=True, group_size=32),
        ("mxfp4",),
    ),
    "mlx mxfp4": Family(writers.mlx_mxfp4, mlx(4, 32, mode="mxfp4"), ("mxfp4",), "quantization"),
    "mlx 4 bits": Family(writers.mlx_affine(bits=4, group=64), mlx(4, 64), ("u4g64", "u4g32"), "quantization"),
    "mlx 8 bits": Family(writers.mlx_affine(bits=8, group=64), mlx(8, 64), ("u8g64",), "quantization"),
    "mlx 2 bits": Family(writers.mlx_affine(bits=2, group=32), mlx(2, 32), ("u2g32",), "quantization"),
    "mlx f16": Family(writers.mlx_affine(bits=4, group=64, leaf=np.float16), mlx(4, 64), (), "quantization"),
    "awq": Family(
        writers.awq(group=32),
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm", "modules_to_not_convert": EXCLUDED},
    ),
    "gptq": Family(writers.gptq(group=32), gptq()),
    "gptq v2": Family(writers.gptq(group=32, version=2, g_idx=False), gptq(checkpoint_format="gptq_v2")),
    "gptq 8 bits": Family(writers.gptq(group=64, bits=8), gptq(bits=8, group_size=64)),
    "gptq 2 bits": Family(writers.gptq(group=64, bits=2, version=2), gptq(bits=2, group_size=64, checkpoint_format="gptq_v2")),
    "packed symmetric int4": Family(
        writers.pack_quantized(group=64), compressed("pack-quantized", **INT4, group_size=64), ("u4g64", "u4g32")
    ),
    "packed symmetric int8": Family(
        writers.pack_quantized(group=64, bits=8), compressed("pack-quantized", **INT4 | {"num_bits": 8}, group_size=64), ("u8g64",)
    ),
    "packed int4 a channel": Family(
        writers.pack_quantized(group=None), compressed("pack-quantized", **INT4 | {"strategy": "channel"}), ("u4g64",)
    ),
    "packed asymmetric int4": Family(
        writers.pack_quantized(group=32, symmetric=False, leaf=np.float16),
        compressed("pack-quantized", **INT4 | {"symmetric": False}, group_size=32),
    ),
    "packed scattered int4": Family(
        writers.pack_quantized(group=32, scattered=True), compressed("pack-quantized", **INT4, group_size=32, actorder="group")
    ),
}


@cache
def package() -> Package:
    return load_package(ROOT / "models" / "llama_3.poem")


@cache
def originals() -> dict[str, np.ndarray]:
    return load_file(GOLDEN / "model.safetensors")


@cache
def written(name: str) -> tuple[writers.Tensors, dict[str, np.ndarray]]:
    """The tensors of the whole checkpoint, and the family's own values of each quantised weight."""
    tensors: writers.Tensors = {}
    values: dict[str, np.ndarray] = {}
    for weight, array in originals().items():
        if weight.startswith(QUANTISED) and weight.endswith("_proj.weight"):
            stored, meant = FAMILIES[name].write(weight.removesuffix(".weight"), array.astype(np.float32))
            tensors |= stored
            values[weight] = meant
        else:
            tensors[weight] = array
    return tensors, values


def planned(folder: Path, name: str, deployment: str, **options: Any) -> ImportPlan:
    family = FAMILIES[name]
    config = json.loads((GOLDEN / "config.json").read_text()) | {family.key: family.said}
    return plan_import(open_checkpoint(write_checkpoint(folder, written(name)[0], config)), [package()], deployment=deployment, **options)


def meant(name: str, weight: str) -> np.ndarray:
    """A weight of the first layer by the family's own dequantisation: in float32, rounded once."""
    parts = [written(name)[1][f"{QUANTISED}{part}_proj.weight"] for part in LANDINGS[weight]]
    return np.concatenate(parts).astype(np.float32)


def run(plan: ImportPlan) -> np.ndarray:
    session = Session(package().trace(plan.deployment), plan.weights)
    return session.run([Chunk(session.add_sequence(), [1, 5, 9, 2, 77], readouts="all")])["logits"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_float_deployment_gets_the_familys_own_values_rounded_once(name: str, tmp_path: Path) -> None:
    plan = planned(tmp_path, name, "llama31-mini-bf16-kv-bf16")
    assert plan.actions["decoded"] == len(LANDINGS), plan.report
    for weight in LANDINGS:
        got, want = plan.weights[f"layers.0.{weight}"].planes["data"], meant(name, weight).astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32), err_msg=weight)
    excluded = originals()["model.layers.1.mlp.down_proj.weight"]
    np.testing.assert_array_equal(plan.weights["layers.1.down"].planes["data"].view(np.uint16), excluded.view(np.uint16))
    assert not [note for note in plan.notes if "although" in note], plan.notes


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, family in FAMILIES.items() for dtype in family.lossless])
def test_a_deployment_that_holds_the_codes_keeps_every_value_and_runs(name: str, dtype: str, tmp_path: Path) -> None:
    plan = planned(tmp_path, name, f"llama31-mini-{dtype}-kv-bf16")
    landed = {weight: plan.landings[f"layers.0.{weight}"].action for weight in LANDINGS}
    assert set(landed.values()) == {"copied"}, landed
    for weight in LANDINGS:
        np.testing.assert_array_equal(plan.weights[f"layers.0.{weight}"].decode(), meant(name, weight), err_msg=weight)
    assert np.isfinite(run(plan)).all()


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.lossless])
def test_a_family_whose_factors_no_dtype_holds_is_requantised_only_when_asked(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        _first(lambda: planned(tmp_path, name, "llama31-mini-u4g32-kv-bf16"))
    assert caught.value.code == "import.requantise"
    assert "--requantise" in caught.value.hint
    plan = planned(tmp_path, name, "llama31-mini-u4g32-kv-bf16", requantise=True)
    assert plan.landings["layers.0.q"].action == "encoded"
    got, want = plan.weights["layers.0.q"].decode(), meant(name, "q")
    assert np.abs(got - want).max() <= np.abs(want).max() / 10
    assert np.isfinite(run(plan)).all()


def _first(make: Callable[[], ImportPlan]) -> ImportPlan:
    """What was raised, or the first of several."""
    try:
        return make()
    except PoemErrors as several:
        raise several.errors[0] from None


def test_fused_parts_of_nvfp4_keep_their_own_whole_scales(tmp_path: Path) -> None:
    for name in ("modelopt nvfp4", "compressed-tensors nvfp4"):
        planes = planned(tmp_path / name, name, "llama31-mini-nvfp4-kv-e4m3").weights["layers.0.gate_up"].planes
        assert planes["gain.rows"].tolist() == [128, 128]
        assert len(set(planes["gain.gain"].tolist())) == 2


@pytest.mark.parametrize(("name", "key"), [("modelopt nvfp4", "quantization"), ("modelopt fp8", "quantization")])
def test_modelopts_own_file_says_the_same_as_config_json(name: str, key: str, tmp_path: Path) -> None:
    said = {key: value for key, value in FAMILIES[name].said.items() if key != "quant_method"}
    config = json.loads((GOLDEN / "config.json").read_text())
    folder = write_checkpoint(tmp_path, written(name)[0], config, hf_quant_config={"producer": {"name": "modelopt"}, key: said})
    opened = open_checkpoint(folder)
    assert opened.quantisation.module("model.layers.0.mlp.up_proj").said == f"quant_algo {said['quant_algo']}"
    assert opened.quantisation.module("model.layers.1.mlp.up_proj").ignored
    plan = plan_import(opened, [package()], deployment="llama31-mini-bf16-kv-bf16")
    np.testing.assert_array_equal(plan.weights["layers.0.q"].decode(), meant(name, "q").astype(ml_dtypes.bfloat16).astype(np.float32))


def test_a_module_that_is_quantised_although_it_is_excluded_is_a_note(tmp_path: Path) -> None:
    config = json.loads((GOLDEN / "config.json").read_text()) | {
        "quantization_config": BLOCK | {"modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]}
    }
    opened = open_checkpoint(write_checkpoint(tmp_path, written("fp8 blocks, f32 scales")[0], config))
    notes = plan_import(opened, [package()], deployment="llama31-mini-bf16-kv-bf16").notes
    assert [note for note in notes if "although the configuration leaves it unquantised" in note] == [
        "`model.layers.0.self_attn.q_proj.weight` is stored as e4m3tile128, although the configuration leaves it unquantised"
    ]
