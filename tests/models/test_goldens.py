"""Goldens are made by the original classes, and can be made again from nothing."""

import json
from pathlib import Path

import ml_dtypes  # noqa: F401  (NumPy learns the name bfloat16, which safetensors asks for)
import numpy as np
import pytest
from safetensors.numpy import load_file

from conformance.originals import record_original
from conformance.originals.golden import GREEDY, make_golden, require_equal
from conformance.originals.minis import MINIS, make_mini

MODELS = Path(__file__).parents[2] / "models"
GOLDENS = {name: MODELS / "goldens" / mini.package / mini.model for name, mini in MINIS.items()}
WEIGHT_FILES = ("config.json", "model.safetensors", "inputs.safetensors")


@pytest.mark.original
def test_every_golden_has_a_recipe() -> None:
    from conformance.originals import quantised

    stated = [f"{model}-{weights}-kv-{kv}" for model in quantised.MODELS for weights, kv in quantised.RECIPES]
    assert sorted(MODELS.glob("goldens/*/*")) == sorted([*GOLDENS.values(), *(MODELS / "goldens" / "llama_3" / name for name in stated)])


@pytest.mark.parametrize("folder", GOLDENS.values(), ids=GOLDENS)
def test_a_golden_is_whole_small_and_readable_by_all(folder: Path) -> None:
    files = {file.name: file for file in folder.iterdir()}
    assert set(files) == {*WEIGHT_FILES, "expected.safetensors", "meta.json"}
    assert sum(file.stat().st_size for file in files.values()) < 800_000
    expected = load_file(files["expected.safetensors"])
    tokens = load_file(files["inputs.safetensors"])["input_ids"].size
    config = json.loads(files["config.json"].read_text())
    assert expected["logits"].shape == (tokens, config["vocab_size"])
    assert expected["greedy.ids"].shape == (tokens + GREEDY,)
    for layer in range(config["num_hidden_layers"]):
        assert expected[f"attention.{layer}.key"].shape == expected[f"module.model.layers.{layer}.self_attn.k_proj.output"].shape
    assert all(np.isfinite(value).all() for value in expected.values())


@pytest.mark.parametrize("folder", GOLDENS.values(), ids=GOLDENS)
def test_greedy_logits_choose_the_greedy_ids(folder: Path) -> None:
    expected = load_file(folder / "expected.safetensors")
    np.testing.assert_array_equal(expected["greedy.logits"].argmax(-1), expected["greedy.ids"][-GREEDY:])
    np.testing.assert_allclose(expected["greedy.logits"][0], expected["logits"][-1], rtol=0, atol=2.0**-18)


@pytest.mark.original
@pytest.mark.parametrize("name", MINIS)
def test_a_golden_is_made_again_from_nothing(name: str, tmp_path: Path) -> None:
    make_mini(name, tmp_path / "mini")
    for file in WEIGHT_FILES[1:]:
        got, want = load_file(tmp_path / "mini" / file), load_file(GOLDENS[name] / file)
        assert got.keys() == want.keys()
        for key in want:
            assert got[key].dtype == want[key].dtype, key
            np.testing.assert_array_equal(got[key].view(np.uint8), want[key].view(np.uint8), err_msg=f"{file}: {key}")
    got = make_golden(tmp_path / "mini", tmp_path / "golden")
    want = load_file(GOLDENS[name] / "expected.safetensors")
    assert got.keys() == want.keys()
    require_equal(got, want)
    require_equal(load_file(tmp_path / "golden" / "expected.safetensors"), got)


@pytest.mark.original
def test_recording_takes_nothing_from_the_class_it_records() -> None:
    """Hooks and wrapped functions are gone afterwards: a second recording without greedy tokens gives the same bits."""
    from transformers.models.llama import modeling_llama

    before = modeling_llama.eager_attention_forward
    ids = load_file(GOLDENS["llama_3"] / "inputs.safetensors")["input_ids"]
    first, second = record_original(GOLDENS["llama_3"], ids), record_original(GOLDENS["llama_3"], ids[0], greedy=0)
    assert modeling_llama.eager_attention_forward is before
    assert {name for name in first if name not in second} == {"greedy.ids", "greedy.logits"}
    for name, value in second.items():
        np.testing.assert_array_equal(value, first[name], err_msg=name)


@pytest.mark.original
@pytest.mark.parametrize("name", MINIS)
def test_recorded_modules_are_linear_maps_of_the_stored_weights(name: str) -> None:
    """What was recorded is what the names say: outputs are the checkpoint's matrices times the inputs, plus the biases."""
    from safetensors.torch import load_file as load_torch

    weights = {key: value.double().numpy() for key, value in load_torch(GOLDENS[name] / "model.safetensors").items()}
    expected = load_file(GOLDENS[name] / "expected.safetensors")
    seen = 0
    for key, output in expected.items():
        module = key.removeprefix("module.").removesuffix(".output")
        if key.endswith("_proj.output"):
            want = expected[f"module.{module}.input"].astype(np.float64) @ weights[f"{module}.weight"].T
            want = want + weights.get(f"{module}.bias", 0.0)
            np.testing.assert_allclose(output, want, rtol=0, atol=2.0**-18, err_msg=key)
            seen += 1
    assert seen == 14, "seven projections in each of two layers"


@pytest.mark.parametrize(
    ("got", "message"),
    [
        ({}, "a: expected, but not recorded"),
        ({"a": np.zeros((2, 3), np.float32)}, r"a: shape \(2, 3\), expected \(2, 2\)"),
        ({"a": np.array([[1, 2], [3, 4.001]], np.float32)}, r"a\[1, 1\] = 4.0009"),
        ({"a": np.array([[1, np.nan], [3, 4]], np.float32)}, r"a\[0, 1\] = nan"),
    ],
)
def test_a_value_that_is_not_reproduced_is_named(got: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        require_equal(got, {"a": np.array([[1, 2], [3, 4]], np.float32)})
