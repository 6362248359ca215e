"""Checkpoints are recognised as what they are, and read to the same weights whatever their container."""

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from conformance.originals.minis import MINIS, Mini
from poem.checkpoint import open_checkpoint
from poem.errors import PoemError
from poem.importer import plan_import
from tests.models.packages import PACKAGES, golden, package

CASES = pytest.mark.parametrize("mini", MINIS.values(), ids=MINIS)
GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def packages() -> list[Any]:
    return [package(name) for name in PACKAGES]


def gguf_name(name: str) -> str:
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    _, _, layer, module = name.split(".", 3)
    stem, kind = module.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[stem]}.{kind}"


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to query and key projections of architecture llama (`LlamaModel.permute`)."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path: Path, folder: Path, kind: str = "BF16") -> None:
    """A golden's checkpoint as llama.cpp's converter writes it: vectors in f32, matrices in bf16 or blocks."""
    config = json.loads((folder / "config.json").read_text())
    arch = "qwen2" if config["model_type"] == "qwen2" else "llama"  # Mistral is filed under llama
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    rope = config["rope_parameters"]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", np.ones(config["head_dim"] // 2, np.float32))
    for name, tensor in load_file(folder / "model.safetensors").items():
        if arch == "llama" and ".q_proj." in name:
            tensor = permuted(tensor, heads)
        if arch == "llama" and ".k_proj." in name:
            tensor = permuted(tensor, kv_heads)
        if tensor.ndim == 1:
            writer.add_tensor(gguf_name(name), tensor.astype(np.float32))
        else:
            writer.add_tensor(gguf_name(name), in_blocks(tensor, kind), raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def in_blocks(matrix: np.ndarray, kind: str) -> np.ndarray:
    """The bytes of a matrix in a ggml type, by gguf's own code."""
    return gguf.quants.quantize(np.ascontiguousarray(matrix, np.float32), gguf.GGMLQuantizationType[kind]).view(np.uint8)


@CASES
def test_a_mini_checkpoint_is_recognised_among_all_models(mini: Mini) -> None:
    plan = plan_import(open_checkpoint(golden(mini)), packages())
    assert (plan.package.name, plan.deployment.name) == (mini.package, f"{mini.model}-bf16-kv-bf16")


@CASES
def test_a_gguf_file_is_recognised_among_all_models_and_holds_the_weights_of_the_hub_checkpoint(mini: Mini, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", golden(mini))
    plan = plan_import(open_checkpoint(tmp_path / "model.gguf"), packages())
    assert plan.deployment.name == f"{mini.model}-bf16-kv-bf16"
    hub = plan_import(open_checkpoint(golden(mini)), [package(mini.package)], deployment=plan.deployment.name).weights
    assert plan.weights.keys() == hub.keys()
    for name in hub:
        np.testing.assert_array_equal(plan.weights[name].decode(), hub[name].decode(), err_msg=name)


@CASES
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_a_quantised_gguf_file_holds_the_values_that_ggufs_own_code_reads(mini: Mini, kind: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", golden(mini), kind)
    plan = plan_import(open_checkpoint(tmp_path / "model.gguf"), [package(mini.package)], deployment=f"{mini.model}-bf16-kv-bf16")
    originals = load_file(golden(mini) / "model.safetensors")
    for layer in range(2):
        for weight, parts in {"q": ["self_attn.q"], "k": ["self_attn.k"], "down": ["mlp.down"], "gate_up": ["mlp.gate", "mlp.up"]}.items():
            matrix = np.concatenate([originals[f"model.layers.{layer}.{part}_proj.weight"] for part in parts])
            own = gguf.quants.dequantize(in_blocks(matrix, kind), gguf.GGMLQuantizationType[kind])
            assert plan.landings[f"layers.{layer}.{weight}"].action == "decoded"
            got = plan.weights[f"layers.{layer}.{weight}"].decode()
            np.testing.assert_array_equal(got, own.astype(ml_dtypes.bfloat16).astype(np.float32), err_msg=weight)


CHANGES = {
    "hidden_act": "gelu",
    "hidden_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-3,
    "tie_word_embeddings": None,  # the other one
    "rope_parameters.rope_theta": 20000.0,
    "rope_parameters.rope_type": "yarn",
    "rope_parameters.factor": 3.0,
    "model_type": "gemma",
}


@CASES
@pytest.mark.parametrize("key", CHANGES)
def test_a_checkpoint_that_states_something_else_is_refused(mini: Mini, key: str, tmp_path: Path) -> None:
    refused(mini, tmp_path, key, CHANGES[key])


@pytest.mark.parametrize("key", ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"])
def test_another_rope_scaling_is_refused(key: str, tmp_path: Path) -> None:
    refused(MINIS["llama_3"], tmp_path, f"rope_parameters.{key}", 2.0)


def test_rope_scaling_that_is_missing_is_refused(tmp_path: Path) -> None:
    refused(MINIS["llama_3"], tmp_path, "rope_parameters", {"rope_theta": 500000.0, "rope_type": "default"}, named="factor")


@pytest.mark.parametrize("window", [4096, None])
def test_another_window_is_refused(window: int | None, tmp_path: Path) -> None:
    refused(MINIS["mistral"], tmp_path, "sliding_window", window)


def test_a_window_is_refused_where_the_model_has_none(tmp_path: Path) -> None:
    refused(MINIS["qwen_2"], tmp_path, "use_sliding_window", True)


def test_theta_is_held_to_where_transformers_4_writes_it(tmp_path: Path) -> None:
    """Transformers 4 writes `rope_theta` and `rope_scaling` beside each other."""
    mini = MINIS["llama_3"]
    folder = shutil.copytree(golden(mini), tmp_path / "checkpoint")
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    (folder / "config.json").write_text(json.dumps(config))
    assert plan_import(open_checkpoint(folder), packages()).deployment.model.id == mini.model
    (folder / "config.json").write_text(json.dumps({**config, "rope_theta": 10000.0}))
    with pytest.raises(PoemError):
        plan_import(open_checkpoint(folder), packages())


@CASES
@pytest.mark.parametrize("names", [("k_proj.k_scale", "v_proj.v_scale"), ("k_scale", "v_scale")], ids=["modelopt", "compressed-tensors"])
def test_scales_of_published_8_bit_caches_are_known_and_left_out(mini: Mini, names: tuple[str, str], tmp_path: Path) -> None:
    scales = {f"model.layers.{layer}.self_attn.{name}": np.ones(1, np.float32) for layer in range(2) for name in names}
    folder = shutil.copytree(golden(mini), tmp_path / "checkpoint")
    save_file(load_file(folder / "model.safetensors") | scales, folder / "model.safetensors")
    plan = plan_import(open_checkpoint(folder), [package(mini.package)])
    assert {name: entry.reason for entry in plan.not_read for name in entry.names} == dict.fromkeys(
        scales, "the format names it as not read"
    )


def refused(mini: Mini, folder: Path, path: str, value: Any, named: str = "") -> None:
    """Change one value of a golden's config: its model does not want the checkpoint any more, and the message names the key."""
    folder = shutil.copytree(golden(mini), folder / "checkpoint")
    config = json.loads((folder / "config.json").read_text())
    at, *keys = config, *path.split(".")
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = (not at[keys[-1]]) if path == "tie_word_embeddings" else value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(PoemError) as caught:
        plan_import(open_checkpoint(folder), [package(mini.package)], deployment=f"{mini.model}-bf16-kv-bf16")
    assert (named or keys[-1]) in caught.value.render(), caught.value.render()
