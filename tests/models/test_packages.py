"""The shipped packages load, trace, and are the public models they are named after."""

import re
from collections import defaultdict
from functools import cache
from math import prod
from typing import Any

import pytest

from conformance.originals.minis import BASE, MINIS
from tests.models.packages import DEPLOYMENTS, MODELS, PACKAGES, package
from tests.models.public_configs import PUBLIC

# How tensors of transformers classes lie in the layout; several for one weight are joined on axis 0, in this order.
LANDINGS = {
    "model.embed_tokens.weight": "embed",
    "model.norm.weight": "final_norm",
    "lm_head.weight": "head",
    "input_layernorm.weight": "attn_norm",
    "post_attention_layernorm.weight": "mlp_norm",
    "self_attn.q_proj.weight": "q",
    "self_attn.k_proj.weight": "k",
    "self_attn.v_proj.weight": "v",
    "self_attn.o_proj.weight": "o",
    "self_attn.q_proj.bias": "q_bias",
    "self_attn.k_proj.bias": "k_bias",
    "self_attn.v_proj.bias": "v_bias",
    "mlp.gate_proj.weight": "gate_up",
    "mlp.up_proj.weight": "gate_up",
    "mlp.down_proj.weight": "down",
}


def test_every_package_loads_without_a_note() -> None:
    assert {name: package(name).notes for name in PACKAGES} == {name: [] for name in PACKAGES}


@pytest.mark.parametrize(("name", "deployment"), DEPLOYMENTS, ids=[deployment for _, deployment in DEPLOYMENTS])
def test_every_deployment_traces_and_reads_out_logits(name: str, deployment: str) -> None:
    model = package(name).deployment(deployment).model
    graph = package(name).trace(deployment)
    assert [output.name for output in graph.outputs] == ["logits"]
    logits = graph.values[graph.outputs[0].value].type
    assert (logits.rows, logits.width) == ("readouts", model.vocab)
    assert len(graph.caches) == model.layers
    assert [note for note in package(name).notes if note.startswith(deployment)] == [], "weights or rows that nothing uses"


def test_every_model_is_public_or_a_mini_with_a_golden() -> None:
    models = {id: model.mini for name in PACKAGES for id, model in package(name).models.items()}
    assert {id for id, mini in models.items() if not mini} == set(PUBLIC)
    assert {id for id, mini in models.items() if mini} == {mini.model for mini in MINIS.values()}


@pytest.mark.parametrize(
    ("deployment", "weights", "nodes", "rows"), [("llama31-8b-bf16-kv-bf16", 259, 452, 32), ("llama32-1b-bf16-kv-bf16", 130, 228, 16)]
)
def test_llama_traces_to_the_graph_that_its_layers_call_for(deployment: str, weights: int, nodes: int, rows: int) -> None:
    graph = package("llama_3").trace(deployment)
    assert (len(graph.params), len(graph.nodes), len(graph.caches)) == (weights, nodes, rows)


@cache
def original_shapes(cls: str, config: tuple[tuple[str, Any], ...]) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters of a transformers class, built without memory."""
    import torch
    import transformers

    model_class = getattr(transformers, cls)
    with torch.device("meta"):
        model = model_class(
            model_class.config_class(**{key: dict(value) if key == "rope_scaling" and value else value for key, value in config})
        )
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def landed(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of a class's parameters, under the layout's names."""
    rows: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for name, shape in shapes.items():
        if name.startswith("model.layers."):
            _, _, layer, tensor = name.split(".", 3)
            rows[f"layers.{layer}.{LANDINGS[tensor]}"].append(shape)
        else:
            rows[LANDINGS[name]].append(shape)
    return {name: (sum(shape[0] for shape in parts), *parts[0][1:]) for name, parts in rows.items()}


def laid_out(name: str, model: str) -> dict[str, tuple[int, ...]]:
    deployment = next(deployment for deployment in package(name).deployments.values() if deployment.model.id == model)
    return {param.name: tuple(param.shape) for param in package(name).lay_out(deployment).params}


def frozen(config: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, tuple(value.items()) if isinstance(value, dict) else value) for key, value in config.items())


@pytest.mark.parametrize("id", PUBLIC)
def test_the_parameters_of_a_public_model_are_as_many_as_the_hub_shows(id: str) -> None:
    assert sum(map(prod, laid_out(PUBLIC[id].package, id).values())) == PUBLIC[id].parameters


def test_the_documentation_lists_every_public_model_with_its_parameters() -> None:
    page = (MODELS.parent / "docs" / "models.md").read_text()
    listed = {
        id: int(parameters.replace(",", ""))
        for ids, parameters in re.findall(r"\| (`[^|]+`) \| ([0-9,]+) \|", page)
        for id in re.findall(r"`([^`]+)`", ids)
    }
    assert listed == {id: public.parameters for id, public in PUBLIC.items()}


@pytest.mark.original
@pytest.mark.parametrize("id", PUBLIC)
def test_the_layout_of_a_public_model_has_the_shapes_of_the_original_class(id: str) -> None:
    public = PUBLIC[id]
    assert laid_out(public.package, id) == landed(original_shapes(public.cls, frozen(public.config)))


@pytest.mark.original
@pytest.mark.parametrize("mini", MINIS.values(), ids=MINIS)
def test_the_layout_of_a_mini_has_the_shapes_of_the_original_class(mini: Any) -> None:
    config = {key: value for key, value in {**BASE, **mini.config}.items() if key != "rope_parameters"}
    assert laid_out(mini.package, mini.model) == landed(original_shapes(mini.cls, frozen(config)))
