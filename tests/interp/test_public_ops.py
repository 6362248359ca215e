"""Ops that name a public equal, against that class of transformers or torch with random weights.

The classes compute in float32, so they agree with exact mode to what about a hundred float32 roundings of a row's magnitude add.
"""

import importlib
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from interp import evaluate
from interp.evaluate import Given
from interp.ops.mixing import relative_bucket
from poem.dtypes.tensor import Tensor
from tests.interp import cases

pytestmark = pytest.mark.original
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
F = torch.nn.functional
LIMIT = 128 * 2.0**-24


def public(family: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)


def filled(module: Any, seed: int = 0) -> Any:
    """The module with random float parameters and buffers."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for held in (*module.parameters(), *module.buffers()):
            if held.is_floating_point():
                held.copy_(torch.randn(held.shape, generator=generator))
    return module.eval()


def draw(*shape: int, seed: int = 1) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def v(values: Any, axis: str = "tokens") -> Given:
    return Given(values.detach().numpy(), "f32", axis)


def ids(values: Any, axis: str = "tokens") -> Given:
    return Given(np.asarray(values).astype(np.int32), "i32", axis)


def w(values: Any) -> Tensor:
    return Tensor.of(np.ascontiguousarray(values.detach().numpy()))


def run(op: str, *arguments: Any, **named: Any) -> Any:
    return evaluate(op, *arguments, mode="exact", **named)


def equal(got: np.ndarray, want: Any, what: str) -> None:
    want = want.detach().numpy()
    cases.close(got, want.reshape(got.shape), what, LIMIT)


# -- routers: the identity as weight, so that the hidden rows are the logits -------------------------------------------------
def router(family: str, name: str, **config: Any) -> Any:
    return public(family, name)(SimpleNamespace(hidden_size=config.get("num_local_experts") or config.get("total"), **config))


ROUTERS = {
    "deepseek_v2-greedy": (
        "deepseek_v2", "DeepseekV2TopkRouter", {"topk_method": "greedy"},
        {"renormalize": False},
    ),
    "deepseek_v2-groups": (
        "deepseek_v2", "DeepseekV2TopkRouter", {"topk_method": "group_limited_greedy"},
        {"renormalize": False, "groups": 4, "group_top_k": 2},
    ),
    "deepseek_v3": ("deepseek_v3", "DeepseekV3TopkRouter", {}, {"score": "sigmoid", "groups": 4, "group_top_k": 2}),
    "mistral4": ("mistral4", "Mistral4TopkRouter", {}, {"groups": 4, "group_top_k": 2, "group_score": "top2"}),
    "deepseek_v4": ("deepseek_v4", "DeepseekV4TopKRouter", {"scoring_func": "sqrtsoftplus"}, {"score": "sqrt_softplus"}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUTERS)
def test_routing_is_that_of_the_public_router(name: str) -> None:
    family, class_name, special, options = ROUTERS[name]
    experts, top_k = 16, 4
    config = {
        "num_experts_per_tok": top_k, "num_local_experts": experts, "num_experts": experts, "routed_scaling_factor": 2.5, "n_group": 4,
        "topk_group": 2, "norm_topk_prob": True, **special,
    }  # fmt: skip
    module = filled(router(family, class_name, **config))
    with torch.no_grad():
        module.weight.copy_(torch.eye(experts))
    logits = draw(9, experts)
    _, weights, indices = module(logits)
    bias = getattr(module, "e_score_correction_bias", None)
    if bias is not None:
        options = {**options, "bias": w(bias)}
    compare_routes(run("linear.moe_route", v(logits), experts, top_k, scaling=2.5, **options), indices, weights, name)


def compare_routes(found: Any, indices: Any, weights: Any, what: str) -> None:
    """Experts and weights, whatever the order of the public ones."""
    routes, mixture = found
    order = torch.argsort(indices, dim=1)
    own = np.argsort(routes, axis=1)
    assert np.take_along_axis(routes, own, 1).tolist() == torch.gather(indices, 1, order).tolist(), what
    equal(np.take_along_axis(mixture, own, 1), torch.gather(weights, 1, order), what)


def test_hash_routing_is_that_of_deepseek_v4() -> None:
    module = router(
        "deepseek_v4", "DeepseekV4HashRouter", num_experts_per_tok=3, num_local_experts=8, scoring_func="sqrtsoftplus",
        routed_scaling_factor=1.5, vocab_size=20,
    )  # fmt: skip
    with torch.no_grad():
        module.weight.copy_(torch.eye(8))
        module.tid2eid.copy_(torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(t))[:3] for t in range(20)]))
    logits, tokens = draw(7, 8), torch.arange(7) * 2
    _, weights, indices = module(logits, tokens)
    found = run("linear.moe_route", v(logits), 8, 3, score="sqrt_softplus", scaling=1.5, ids=ids(tokens), table=w(module.tid2eid))
    assert found[0].tolist() == indices.tolist()
    equal(found[1], weights, "weights")


def test_routing_with_sinks_is_that_of_inkling() -> None:
    module = filled(
        public("inkling", "InklingTopkRouter")(
            SimpleNamespace(n_routed_experts=8, n_shared_experts=2, hidden_size=10, route_scale=1.5, num_experts_per_tok=3)
        )
    )
    with torch.no_grad():
        module.weight.copy_(torch.eye(10))
    logits = draw(9, 10)
    _, weights, indices, shared = module(logits)
    routes, mixture = run(
        "linear.moe_route", v(logits), 8, 3, score="sigmoid", bias=w(module.e_score_correction_bias), sinks=2, scaling=1.5,
        expert_scale=w(module.global_scale),
    )  # fmt: skip
    compare_routes((routes[:, :3], mixture[:, :3]), indices, weights, "routed")
    equal(mixture[:, 3:], shared, "sinks")


def test_routing_with_a_scale_for_each_expert_is_that_of_gemma_4() -> None:
    module = filled(
        public("gemma4", "Gemma4TextRouter")(SimpleNamespace(hidden_size=12, rms_norm_eps=1e-6, num_experts=12, top_k_experts=4))
    )
    hidden = draw(9, 12)
    _, weights, indices = module(hidden)
    logits = module.proj(module.norm(hidden) * module.scale * module.scalar_root_size)
    compare_routes(run("linear.moe_route", v(logits), 12, 4, expert_scale=w(module.per_expert_scale)), indices, weights, "gemma4")


def test_routing_and_experts_are_those_of_gpt_oss() -> None:
    experts, top_k, hidden, inter = 6, 2, 10, 8
    config = SimpleNamespace(
        num_experts_per_tok=top_k, num_local_experts=experts, hidden_size=hidden, intermediate_size=inter, swiglu_alpha=1.702,
        swiglu_limit=7.0, _experts_implementation="eager",
    )  # fmt: skip
    gate, bank = filled(public("gpt_oss", "GptOssTopKRouter")(config)), filled(public("gpt_oss", "GptOssExperts")(config), 2)
    x = draw(9, hidden)
    logits, weights, indices = gate(x)
    routes, mixture = run("linear.moe_route", v(logits), experts, top_k)
    compare_routes((routes, mixture), indices, weights, "router")

    # the checkpoint alternates gate and up, and stores [in, out]: the rows of [gate | up] are its even, then its odd columns
    order = [*range(0, 2 * inter, 2), *range(1, 2 * inter, 2)]
    up = w(bank.gate_up_proj.transpose(1, 2)[:, order]), w(bank.gate_up_proj_bias[:, order])
    chosen, shares = ids(routes), Given(mixture, "f32")
    gate_up = run("linear.moe_matmul_select", v(x), up[0], chosen, top_k, up[1])
    slots = Given(run("linear.glu", Given(gate_up, "f32"), inter, limit=7.0, alpha=1.702), "f32", f"tokens*{top_k}")
    down = run("linear.moe_matmul_select", slots, w(bank.down_proj.transpose(1, 2)), chosen, top_k)
    got = run("linear.moe_weighted_sum", Given(down, "f32", f"tokens*{top_k}"), shares, chosen, w(bank.down_proj_bias))
    equal(got, bank(x, indices, weights), "experts")
    unbiased = run("linear.moe_weighted_sum", Given(down, "f32", f"tokens*{top_k}"), shares, chosen)
    np.testing.assert_allclose(
        run("linear.moe_bias_sum", Given(unbiased, "f32"), w(bank.down_proj_bias), chosen, shares), got, rtol=1e-6, atol=1e-6
    )


# -- linear -------------------------------------------------------------------------------------------------------------------
def test_relative_biases_are_those_of_inkling() -> None:
    module = filled(public("inkling", "InklingRelativeLogits")(4, 5))
    rows, heads = 7, 3
    states = draw(1, rows, heads, 4)
    positions = torch.arange(rows)
    want = module(states, positions, positions)[0]
    table = run("linear.rel_bias", v(states.reshape(rows, -1)), w(module.proj), heads, 4, 5).reshape(rows, heads, 5)
    for head, query, key in np.ndindex(heads, rows, rows):
        got = table[query, head, query - key] if 0 <= query - key < 5 else 0.0
        assert got == pytest.approx(want[head, query, key].item(), abs=1e-5)


@pytest.mark.parametrize(("act", "op"), [("gelu_pytorch_tanh", "linear.gelu_tanh"), ("silu", "elemwise.silu"), ("gelu", "elemwise.gelu")])
def test_activations_are_those_of_transformers(act: str, op: str) -> None:
    x = draw(5, 40) * 4
    equal(run(op, v(x)), transformers.activations.ACT2FN[act](x), act)


def test_relu2_is_that_of_transformers() -> None:
    x = draw(5, 40)
    equal(run("elemwise.relu2", v(x)), transformers.activations.ACT2FN["relu2"](x), "relu2")


# -- norms --------------------------------------------------------------------------------------------------------------------
def test_norms_are_those_of_the_families() -> None:
    x = draw(5, 32)
    llama = filled(public("llama", "LlamaRMSNorm")(32, 1e-6))
    equal(run("elemwise.rmsnorm", v(x), w(llama.weight), 1e-6), llama(x), "llama")
    gemma = filled(public("gemma", "GemmaRMSNorm")(32, 1e-6))
    equal(run("elemwise.rmsnorm_plus_one", v(x), w(gemma.weight), 1e-6), gemma(x), "gemma")
    heads = filled(public("qwen3_5", "Qwen3_5RMSNorm")(8, 1e-6))
    equal(run("elemwise.rmsnorm_per_head_plus_one", v(x), w(heads.weight), 8, 1e-6), heads(x.view(5, 4, 8)), "qwen3_5")
    layer = filled(torch.nn.LayerNorm(32, 1e-5))
    equal(run("elemwise.layernorm", v(x), w(layer.weight), w(layer.bias)), layer(x), "layernorm")
    groups = filled(public("qwen4_exp", "Qwen4ExpTextRMSNorm")(32, group_size=8, eps=1e-6))
    equal(run("elemwise.rmsnorm_grouped_plus_one", v(x), w(groups.weight), 8, 1e-6), groups(x), "qwen4")


def test_gated_norms_are_those_of_qwen_3_next_and_mamba_2() -> None:
    x, gate = draw(5, 32), draw(5, 32, seed=3)
    norm_first = filled(public("qwen3_next", "Qwen3NextRMSNormGated")(8))
    want = norm_first(x.reshape(-1, 8), gate.reshape(-1, 8))
    equal(run("elemwise.rmsnorm_gated", v(x), v(gate), w(norm_first.weight), 8, 1e-6), want, "norm first")
    gate_first = filled(public("mamba2", "MambaRMSNormGated")(32, group_size=8))
    want = gate_first(x, gate)
    equal(run("elemwise.rmsnorm_gated", v(x), v(gate), w(gate_first.weight), 8, 1e-6, gate_first=True), want, "gate first")


# -- streams ------------------------------------------------------------------------------------------------------------------
def test_hyper_connections_are_those_of_deepseek_v4() -> None:
    m, hidden, rows = 4, 6, 5
    config = SimpleNamespace(hc_mult=m, hc_sinkhorn_iters=3, hc_eps=1e-6, rms_norm_eps=1e-6, hidden_size=hidden)
    module, head = (
        filled(public("deepseek_v4", "DeepseekV4HyperConnection")(config)),
        filled(public("deepseek_v4", "DeepseekV4HyperHead")(config), 4),
    )
    streams = draw(1, rows, m, hidden)
    flat = v(streams.reshape(rows, -1))
    normed = Given(run("elemwise.hc_rmsnorm_f32", flat, 1e-6), "f32")
    mixes = Given(run("elemwise.hc_project", normed, w(module.fn), m), "f32")
    x, post, comb = run("elemwise.hc_gates", mixes, flat, w(module.scale), w(module.base), m, 1e-6, 2.0, 3)
    want_post, want_comb, want_x = module(streams)
    equal(x, want_x, "x")
    equal(post, want_post, "post")
    equal(comb, want_comb, "comb")
    mixed = torch.einsum("nij,nih->njh", want_comb[0], streams[0]) + want_post[0, :, :, None] * want_x[0, :, None]
    equal(run("elemwise.hc_fold", Given(x, "f32"), flat, Given(post, "f32"), Given(comb, "f32")), mixed, "fold")
    mixes = Given(run("elemwise.hc_project", normed, w(head.hc_fn), m), "f32")
    equal(run("elemwise.hc_collapse", mixes, flat, w(head.hc_scale), w(head.hc_base), m, 1e-6), head(streams), "collapse")
    equal(run("elemwise.hc_mean", flat, m), public("glm5_next", "Glm5NextTextHyperHead")()(streams), "mean")


def test_the_residual_history_is_that_of_inkling_2() -> None:
    hidden, rows, blocks = 16, 5, 3
    module = filled(public("inkling2", "Inkling2BlockAttentionResidual")(SimpleNamespace(hidden_size=hidden, _attn_implementation="eager")))
    history, running = draw(1, rows, blocks, hidden), draw(1, rows, hidden, seed=2)
    want = module(history, running)[0]
    got = run(
        "elemwise.res_blend", v(running[0]), [v(history[0, :, block]) for block in range(blocks)], w(torch.ones(hidden)), 1e-6,
        w(module.query), scale=hidden**-0.5, values="normed",
    )  # fmt: skip
    equal(got, want, "blend")


def test_gated_streams_are_those_of_qwen_4() -> None:
    m, hidden, low, rows = 3, 8, 5, 6
    module = filled(
        public("qwen4_exp", "Qwen4ExpTextGatedResidual")(SimpleNamespace(hc_count=m, hidden_size=hidden, rms_norm_eps=1e-6, hc_lowrank=low))
    )
    hyper, block = draw(rows, m * hidden), draw(rows, hidden, seed=5)
    mixed, _, weights = module(hyper)
    normed = Given(run("elemwise.rmsnorm_grouped_plus_one", v(hyper), w(module.hc_norm.weight), hidden, 1e-6), "f32")
    inner = run("elemwise.silu_scaled", 1 / m, Given(run("linear.matmul", normed, w(module.input_mix_weight_down.weight)), "f32"))
    gates = Given(run("linear.matmul", Given(inner, "f32"), w(module.input_mix_weight_up.weight)), "f32")
    equal(run("elemwise.hc_mix", gates, normed, m), mixed, "mix")
    inject = Given(run("linear.matmul", normed, w(module.block_inject_weight.weight)), "f32")
    want = hyper.view(rows, m, hidden) + weights[:, :, None] * block[:, None]
    equal(run("elemwise.hc_inject", v(block), inject, m, v(hyper)), want, "inject")


def test_gated_memories_are_those_of_qwen_4() -> None:
    m, hidden, width, rows = 3, 8, 10, 6
    cls = public("qwen4_exp", "Qwen4ExpTextPLELayer")
    norm = public("qwen4_exp", "Qwen4ExpTextRMSNorm")
    module = cls.__new__(cls)  # without its n-gram tables, which are tested where they are read
    torch.nn.Module.__init__(module)
    module.hc_count, module.hidden_size, module.short_conv_state_len, module.layer_idx = m, hidden, 2, 0
    module.key_proj, module.value_proj = torch.nn.Linear(width, m * hidden, bias=False), torch.nn.Linear(width, hidden, bias=False)
    module.norm_key, module.norm_query, module.norm_conv = (norm(m * hidden, group_size=hidden, eps=1e-6) for _ in range(3))
    module.conv1d = torch.nn.Conv1d(m * hidden, m * hidden, 3, groups=m * hidden, bias=False)
    filled(module)
    with torch.no_grad():
        module.conv1d.weight.zero_()  # what is left is the gated value
    memory, states = draw(1, rows, width), draw(1, rows, m * hidden, seed=7)
    module.ple_embedding = lambda input_ids, cache: memory
    want = module(states, torch.zeros(1, rows, dtype=torch.long), None)
    key, query, value = module.norm_key(module.key_proj(memory)), module.norm_query(states), module.value_proj(memory)
    equal(run("elemwise.ple_gate", v(key[0]), v(query[0]), v(value[0]), m), want, "ple_gate")


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 16), (20, 100)])
def test_buckets_of_distances_are_those_of_t5(bidirectional: bool, buckets: int, max_distance: int) -> None:
    """float32 logarithms may put a distance at the very border of a bucket on the other side; everywhere else they agree."""
    distances = torch.arange(-300, 301)
    want = public("t5", "T5Attention")._relative_position_bucket(distances, bidirectional, buckets, max_distance)
    for distance, bucket in zip(distances.tolist(), want.tolist(), strict=True):
        got = relative_bucket(distance, buckets, max_distance, bidirectional)
        half = buckets // 2 if bidirectional else buckets
        near = half // 2
        place = math.log(max(abs(distance), 1) / near) / math.log(max_distance / near) * (half - near)
        on_border = abs(place - round(place)) < 1e-5
        assert got == bucket or (on_border and abs(got - bucket) == 1), f"distance {distance}: got {got}, want {bucket}"


# -- gather -------------------------------------------------------------------------------------------------------------------
def test_position_tables_are_read_as_qwen_3_vl_reads_them() -> None:
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights

    grids, side, width = torch.tensor([[1, 4, 6], [2, 2, 8]]), 5, 3
    taps, shares = get_vision_interpolation_indices_and_weights(grids, side, align_corners=True, spatial_merge_size=2)
    table = draw(side * side, width)
    want = (table[taps] * shares[:, :, None]).sum(1)
    positions = [
        (t, 2 * i + a, 2 * j + b)
        for frames, height, columns in grids.tolist()
        for t, i, j, a, b in np.ndindex(frames, height // 2, columns // 2, 2, 2)
    ]
    segments = [0, 24, 56]
    found, weights = run("gather.grid_taps", ids(positions, "patches"), ids(grids, "images"), ids(segments, "images+1"), "bilinear", side)
    equal(run("gather.embed_weighted", ids(found, "patches"), Given(weights, "f32", "patches"), w(table), side * side), want, "positions")


def test_position_tables_are_read_as_gemma_4_reads_them() -> None:
    side, width = 6, 4
    module = filled(
        public("gemma4", "Gemma4VisionPatchEmbedder")(SimpleNamespace(hidden_size=width, patch_size=2, position_embedding_size=side))
    )
    xy = torch.tensor([[0, 0], [3, 1], [5, 5], [2, 4]])
    want = module._position_embeddings(xy[None], torch.zeros(1, 4, dtype=torch.bool))
    positions = [(0, y, x) for x, y in xy.tolist()]
    found, weights = run(
        "gather.grid_taps", ids(positions, "patches"), ids([[1, side, side]], "images"), ids([0, 4], "images+1"), "axes", side
    )
    table = w(module.position_embedding_table.reshape(2 * side, width))
    equal(run("gather.embed_weighted", ids(found, "patches"), Given(weights, "f32", "patches"), table, 2 * side), want, "positions")


def test_rows_are_pooled_as_gemma_4_pools_them() -> None:
    width, k = 6, 3
    module = public("gemma4", "Gemma4VisionPooler")(SimpleNamespace(hidden_size=width))
    xy = torch.tensor([(k * j + x, k * i + y) for i, j, y, x in np.ndindex(2, 2, k, k)])  # block after block
    states = draw(1, 36, width)
    want, _ = module(states, xy[None], torch.zeros(1, 36, dtype=torch.bool), 4)
    pooled = run("gather.pool_rows", v(states[0], "patches"), k)
    equal(pooled * math.sqrt(width), want, "pooled")
