"""Quantised deployments against goldens in float64 that an independent script made: codes, values, faults, cost."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from conformance.check import check
from conformance.compare import Subject
from conformance.golden import open_golden
from conformance.options import Options
from conformance.planned import subject_of
from conformance.report import Report
from conformance.report_text import render
from poem.checkpoint import open_checkpoint
from poem.dtypes.tensor import Tensor
from poem.importer import ImportPlan, plan_import
from poem.package import load_package

MODELS = Path(__file__).parents[2] / "models"
LLAMA = MODELS / "llama_3.poem"
GOLDENS = MODELS / "goldens" / "llama_3"
RECIPES = [("e4m3tile128a8", "e4m3"), ("nvfp4", "e4m3"), ("u4g64", "bf16")]
MINIS = ["llama31-mini", "llama-tied-mini"]
DEPLOYMENTS = [(model, weights, kv) for model in MINIS for weights, kv in RECIPES]
torch_only = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra `oracles`")


def planned(model: str, weights: str, kv: str) -> ImportPlan:
    return plan_import(open_checkpoint(GOLDENS / model), [load_package(LLAMA)], deployment=f"{model}-{weights}-kv-{kv}")


def subject(plan: ImportPlan, golden: str = "", **changed: Tensor) -> Subject:
    """A deployment against its golden, or another's; `changed` weights in place of its own, named with _ for dots."""
    stated = open_golden(GOLDENS / (golden or plan.deployment.name))
    made = subject_of(plan, plan.package.trace(plan.deployment), stated, Options("llama_3"))
    made.tensors = {name: changed.get(name.replace(".", "_"), tensor) for name, tensor in made.tensors.items()}
    return made


# -- the script -----------------------------------------------------------------------------------
@torch_only
@pytest.mark.parametrize("model", MINIS)
def test_with_nothing_quantised_the_script_computes_what_the_original_class_does(model: str) -> None:
    from conformance.originals.quantised import record

    want = load_file(GOLDENS / model / "expected.safetensors")
    got = {name: tensor.numpy() for name, tensor in record(GOLDENS / model, "bf16", "exact", tokens=24, greedy=8).items()}
    assert got.keys() == want.keys()
    np.testing.assert_array_equal(got["greedy.ids"], want["greedy.ids"])
    for name, array in want.items():
        scale = float(np.abs(array).max())
        np.testing.assert_allclose(got[name], array, rtol=0, atol=2.0**-19 * scale, err_msg=name)


@torch_only
@pytest.mark.parametrize(("model", "weights", "kv"), DEPLOYMENTS)
def test_the_script_encodes_every_weight_to_the_bits_of_the_importer(model: str, weights: str, kv: str) -> None:
    import torch
    from safetensors.torch import load_file as load_torch

    from conformance.originals.quantised import encoded

    plan = planned(model, weights, kv)
    by_tensors = {tuple(use.name for use in landing.array.uses): name for name, landing in plan.landings.items()}
    found = encoded(load_torch(GOLDENS / model / "model.safetensors"), 2, weights)
    assert len(found) == 12, "six weights in each of two layers"
    for tensors, planes in found.items():
        ours = plan.weights[by_tensors[tensors]]
        assert ours.dtype.name == weights
        assert set(ours.planes) == set(planes)
        for path, plane in planes.items():
            want = (plane.view(torch.int16) if plane.dtype == torch.bfloat16 else plane).numpy()
            if path == "code" and weights != "e4m3tile128a8":
                want = want[:, 0::2] | want[:, 1::2] << 4  # packed, low bits first
            bits = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (ours.planes[path], want)]
            np.testing.assert_array_equal(*bits, err_msg=f"{by_tensors[tensors]}: {path}")


@torch_only
@pytest.mark.parametrize(("model", "weights", "kv"), DEPLOYMENTS)
def test_a_stated_golden_is_small_and_made_again_from_its_checkpoint(model: str, weights: str, kv: str, tmp_path: Path) -> None:
    from conformance.originals.quantised import make_golden

    folder = GOLDENS / f"{model}-{weights}-kv-{kv}"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 500_000
    meta = json.loads((folder / "meta.json").read_text())
    assert (folder / meta["checkpoint"]).resolve() == (GOLDENS / model).resolve()
    make_golden(GOLDENS / model, tmp_path / "golden", weights, kv)
    got, want = load_file(tmp_path / "golden" / "expected.safetensors"), load_file(folder / "expected.safetensors")
    assert got.keys() == want.keys()
    for name, array in want.items():  # float64 sums in another order may round to the next f32
        np.testing.assert_allclose(got[name], array, rtol=2.0**-23, atol=1e-12, err_msg=name)


# -- the comparison -------------------------------------------------------------------------------
@pytest.mark.parametrize(("model", "weights", "kv"), DEPLOYMENTS)
def test_a_quantised_deployment_agrees_with_its_golden_to_the_last_bit_of_f32(model: str, weights: str, kv: str) -> None:
    made = subject(planned(model, weights, kv))
    for mode in ("exact", "native"):
        assert made.compared(mode).verdict == "agrees", f"{mode}: {made.compared(mode).faults[:1]}"
    ulps = {row.tensor: row.max_ulp for row in made.compared("exact").rows}
    assert max(ulps.values()) <= 0.5 + 1e-6, f"more than the rounding of what was recorded: {ulps}"


@pytest.mark.parametrize(("model", "weights", "kv"), DEPLOYMENTS)
def test_without_the_casts_of_its_dtypes_a_deployment_differs(model: str, weights: str, kv: str) -> None:
    from interp import Session

    made = subject(planned(model, weights, kv))
    made.__dict__["_exact"] = Session(made.graph, made.tensors, mode="exact")
    assert made.compared("exact").verdict == "differs"


@pytest.mark.parametrize("mode", ["exact", "native"])
@pytest.mark.parametrize(("weights", "kv"), RECIPES)
def test_one_wrong_code_is_found_in_both_modes_and_located(mode: str, weights: str, kv: str) -> None:
    plan = planned("llama31-mini", weights, kv)
    down = plan.weights["layers.1.down"]
    code = down.planes["code"].copy()
    code[3] ^= 0x77 if weights != "e4m3tile128a8" else 0x40
    found = subject(plan, layers_1_down=Tensor(down.dtype, down.shape, {**down.planes, "code": code})).compared(mode)
    assert found.verdict == "differs"
    assert (found.faults[0].op, found.faults[0].layer) == ("linear.matmul", 1)
    assert found.faults[0].tensor == "module.model.layers.1.mlp.down_proj.output"
    assert found.faults[0].index[1] == 3


def test_another_dtype_is_not_taken_for_the_golden_s() -> None:
    found = subject(planned("llama31-mini", "nvfp4", "e4m3"), golden="llama31-mini-u4g64-kv-bf16").compared("native")
    assert found.verdict == "differs"
    assert found.faults[0].op == "linear.matmul"


# -- the command ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def report() -> Report:
    return check(Options(str(LLAMA), model="llama31-mini"))


def test_every_deployment_of_a_mini_is_compared_in_both_modes(report: Report) -> None:
    assert report.verdict == "agrees"
    assert len(report.comparisons) == 10
    assert not any("traced only" in note for note in report.notes)


def test_quantised_deployments_tell_what_they_cost_and_others_do_not(report: Report) -> None:
    costs: dict[str, Any] = {comparison.deployment: comparison.cost for comparison in report.comparisons if comparison.mode == "exact"}
    plain = load_file(GOLDENS / "llama31-mini" / "expected.safetensors")["logits"][:20].astype(np.float64)
    for weights, kv in RECIPES:
        name = f"llama31-mini-{weights}-kv-{kv}"
        want = load_file(GOLDENS / name / "expected.safetensors")["logits"].astype(np.float64)
        assert costs[name].nmse == pytest.approx(float(((want - plain) ** 2).sum() / (plain**2).sum()), rel=1e-6)
        assert (costs[name].agree, costs[name].rows) == (int((want.argmax(-1) == plain.argmax(-1)).sum()), 20)
        assert f"top-1 {costs[name].agree}/20" in next(line for line in render(report).splitlines() if name in line)
    assert costs["llama31-mini-bf16-kv-bf16"] is None


def test_a_stated_golden_that_a_user_names_brings_the_checkpoint_it_was_made_from() -> None:
    name = "llama-tied-mini-nvfp4-kv-e4m3"
    found = check(Options(str(LLAMA), deployment=name, golden=str(GOLDENS / name), mode="exact"))
    assert [(comparison.deployment, comparison.verdict) for comparison in found.comparisons] == [(name, "agrees")]


# -- scales of a cache ------------------------------------------------------------------------------
@torch_only
@pytest.mark.parametrize("scale", [3.0, 0.01])  # the second saturates
def test_published_scales_of_a_cache_reach_its_cells(scale: float, tmp_path: Path) -> None:
    """A package that wants them: two weights a layer, read from where modelopt stores them, passed to the cache."""
    import torch
    from safetensors.numpy import save_file

    from conformance.originals.quantised import Llama, e4m3, values_of
    from interp import Session
    from poem.batch import Chunk

    text, names = LLAMA.read_text(), ("k", "v")
    weights = "".join(f"            {name}_scale = weight([1], dtype.f32),\n" for name in names)
    pairs = "".join(f'    (L + "self_attn.{name}_proj.{name}_scale", "layers.{{l}}.{name}_scale"),\n' for name in names)
    for old, new in (
        ("            attn_norm =", weights + "            attn_norm ="),
        ("] + KV_SCALES", pairs + "]"),
        ("m.head_dim, heads = True)", "m.head_dim, heads = True, scales = [w.k_scale, w.v_scale])"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    shutil.copytree(MODELS / "lib", tmp_path / "lib")
    (tmp_path / "llama_3.poem").write_text(text)
    folder = shutil.copytree(GOLDENS / "llama31-mini", tmp_path / "checkpoint")
    held = load_file(folder / "model.safetensors")
    where = [f"model.layers.{layer}.self_attn.{name}_proj.{name}_scale" for layer in range(2) for name in names]
    stored = dict.fromkeys(where, np.array(scale, np.float32))
    save_file(held | stored, folder / "model.safetensors")
    package = load_package(tmp_path / "llama_3.poem")
    plan = plan_import(open_checkpoint(folder), [package], deployment="llama31-mini-bf16-kv-e4m3")

    ids = [1, 5, 9, 2, 77, 130, 7]
    session = Session(package.trace(plan.deployment), plan.weights, mode="exact", casts=True)
    got = session.run([Chunk(session.add_sequence(), ids, readouts="all")])["logits"]
    config = json.loads((folder / "config.json").read_text())
    values = values_of({name: torch.tensor(array.astype(np.float32)) for name, array in held.items()}, 2, "bf16")

    def logits(scale: float) -> np.ndarray:
        def cells(x: Any) -> Any:
            return (e4m3(x.float() / scale).float() * scale).double()

        return Llama(config, values, cells=cells)(torch.tensor(ids)).numpy()

    np.testing.assert_allclose(got, logits(scale), rtol=0, atol=1e-12)
    assert np.abs(got - logits(1.0)).max() > 1e-2, "without the scales the result is another"
