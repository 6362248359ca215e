"""Rope in every form and scaling, against transformers' own functions, and what it does to single rows.

transformers computes frequencies in f32: `theta ** (i/d)` errs by at most about 10 units of 2^-24 (the exponent's rounding times
ln theta, and the power). At positions up to 100 and channels up to 6 this moves a result by at most 100 * 10 * 2^-24 * 6 < 4e-4;
a wrong pair, frequency or sign moves it by its own size.
"""

from typing import Any

import numpy as np
import pytest

from interp import Session, evaluate
from interp.evaluate import Given
from poem.batch import Chunk
from poem.graph import ValueType
from poem.ops import scaling
from poem.tracer import Tracer

POSITIONS = np.array([0, 1, 2, 7, 31, 100])
TOLERANCE = 4e-4
HEADS, KV_HEADS, DIM = 3, 2, 16


def operands(seed: int = 0, dim: int = DIM) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = len(POSITIONS)
    return tuple(np.clip(rng.standard_normal((shape, heads * dim)), -3, 3) for heads in (HEADS, KV_HEADS))  # type: ignore[return-value]


def rope(q: np.ndarray, k: np.ndarray | None, positions: np.ndarray, theta: float, *, dim: int = DIM, **options: Any) -> Any:
    second = None if k is None else Given(k)
    return evaluate("elemwise.rope", Given(q), second, Given(positions, "i32"), dim, theta, mode="exact", **options)


# -- originals ---------------------------------------------------------------------------------
def heads_first(x: np.ndarray, dim: int = DIM) -> Any:
    """[rows, heads * dim] as torch [1, heads, rows, dim]."""
    import torch

    return torch.tensor(x, dtype=torch.float32).reshape(1, len(x), -1, dim).transpose(1, 2)


def rows_first(x: Any) -> np.ndarray:
    return x.transpose(1, 2).reshape(x.shape[2], -1).numpy()


def at(positions: np.ndarray) -> Any:
    import torch

    return torch.tensor(positions)[None]


def agree(got: Any, want: Any) -> None:
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, rows_first(theirs), rtol=0, atol=TOLERANCE)


def config(family: str, name: str, rope_parameters: dict[str, Any], **settings: Any) -> Any:
    module = pytest.importorskip(f"transformers.models.{family}.configuration_{family}")
    return getattr(module, name)(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, head_dim=DIM, max_position_embeddings=settings.pop("longest", 128),
        rope_parameters=rope_parameters, **settings,
    )  # fmt: skip


def modeling(family: str) -> Any:
    return pytest.importorskip(f"transformers.models.{family}.modeling_{family}")


SCALINGS = {
    "default": ({}, None),
    "linear": ({"factor": 4.0}, scaling.linear(4.0)),
    "llama3": (
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        scaling.llama3(8.0, 1.0, 4.0, 64),
    ),
    "yarn": (
        {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0, "beta_slow": 1.0},
        scaling.yarn(factor=4.0, original_max_position=64, beta_fast=8.0, beta_slow=1.0, attention_factor=0.1 * np.log(4) + 1),
    ),
    "yarn, untruncated": (
        {"factor": 4.0, "original_max_position_embeddings": 64, "truncate": False, "attention_factor": 1.0},
        scaling.yarn(factor=4.0, original_max_position=64, truncate=False),
    ),
}


@pytest.mark.original
@pytest.mark.parametrize("name", SCALINGS)
def test_half_rope_with_scalings_is_llamas(name: str) -> None:
    llama = modeling("llama")
    theirs, ours = SCALINGS[name]
    kind = name.split(",")[0]
    embedding = llama.LlamaRotaryEmbedding(config("llama", "LlamaConfig", {"rope_type": kind, "rope_theta": 500.0, **theirs}))
    q, k = operands()
    cos, sin = embedding(heads_first(q), at(POSITIONS))
    agree(rope(q, k, POSITIONS, 500.0, scaling=ours), llama.apply_rotary_pos_emb(heads_first(q), heads_first(k), cos, sin))


@pytest.mark.original
@pytest.mark.parametrize("longest", [32, 101])
def test_longrope_takes_the_list_that_transformers_takes(longest: int) -> None:
    """transformers switches by the largest position of the call: past 64 all rows turn by the long list."""
    phi = modeling("phi3")
    short, long = [1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 2.5, 3.0], [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0]
    parameters = {
        "rope_type": "longrope", "rope_theta": 500.0, "short_factor": short, "long_factor": long, "factor": 2.0,
        "original_max_position_embeddings": 64, "attention_factor": 1.25,
    }  # fmt: skip
    embedding = phi.Phi3RotaryEmbedding(config("phi3", "Phi3Config", parameters, pad_token_id=0, original_max_position_embeddings=64))
    rng = np.random.default_rng(0)
    q = np.clip(rng.standard_normal((longest, DIM)), -3, 3)
    cos, sin = embedding(heads_first(q), at(np.arange(longest)))
    want = phi.apply_rotary_pos_emb(heads_first(q), heads_first(q), cos, sin)[0]
    value = scaling.longrope(short, long, 64, 1.25)
    got = evaluate(
        "elemwise.rope", Given(q), None, Given(np.arange(longest), "i32"), DIM, 500.0, scaling=value, mode="exact", lanes=[longest]
    )
    agree([got], [want])


@pytest.mark.original
def test_partial_half_rope_is_qwen_3_5s() -> None:
    qwen = modeling("qwen3_5")
    q, k = operands()
    angles = np.concatenate([POSITIONS[:, None] * 100.0 ** -(np.arange(4) / 4)] * 2, axis=1)
    import torch

    cos, sin = torch.tensor(np.cos(angles)[None]).float(), torch.tensor(np.sin(angles)[None]).float()
    agree(rope(q, k, POSITIONS, 100.0, rotary_dim=8), qwen.apply_rotary_pos_emb(heads_first(q), heads_first(k), cos, sin))


@pytest.mark.original
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_interleaved_rope_is_glm_4s(share: float) -> None:
    glm = modeling("glm4")
    parameters = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": share}
    embedding = glm.Glm4RotaryEmbedding(config("glm4", "Glm4Config", parameters))
    q, k = operands()
    cos, sin = embedding(heads_first(q), at(POSITIONS))
    want = glm.apply_rotary_pos_emb(heads_first(q), heads_first(k), cos, sin)
    agree(rope(q, k, POSITIONS, 100.0, form="interleaved", rotary_dim=int(DIM * share)), want)


@pytest.mark.original
@pytest.mark.parametrize("inverse", [False, True])
def test_interleaved_rope_of_the_last_channels_is_deepseek_v4s(inverse: bool) -> None:
    """DeepSeek turns the attention output back with -sin."""
    deepseek = modeling("deepseek_v4")
    import torch

    q, _ = operands()
    angles = POSITIONS[:, None] * 100.0 ** -(np.arange(4) / 4)
    cos, sin = (torch.tensor(f(angles)[None]).float() for f in (np.cos, np.sin))
    want = deepseek.apply_rotary_pos_emb(heads_first(q), cos, -sin if inverse else sin)
    agree([rope(q, None, POSITIONS, 100.0, form="interleaved", part="last", rotary_dim=8, inverse=inverse)], [want])


@pytest.mark.original
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_proportional_rope_is_gemma_4s(factor: float) -> None:
    import torch

    gemma = modeling("gemma4")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": "proportional", "rope_theta": 100.0, "partial_rotary_factor": 0.5, "factor": factor}
    frequency, _ = ROPE_INIT_FUNCTIONS["proportional"](config("llama", "LlamaConfig", parameters))
    q, k = operands()
    angles = torch.tensor(POSITIONS[:, None]).float() * frequency
    angles = torch.cat([angles, angles], dim=-1)[None]
    want = [gemma.apply_rotary_pos_emb(heads_first(x), angles.cos(), angles.sin()) for x in (q, k)]
    ours = None if factor == 1.0 else scaling.linear(factor)
    agree(rope(q, k, POSITIONS, 100.0, form="proportional", rotary_dim=8, scaling=ours), want)


GRID = np.stack([POSITIONS, POSITIONS[::-1], (3 * POSITIONS) % 50], axis=1)


@pytest.mark.original
@pytest.mark.parametrize(
    ("family", "name", "form"),
    [("qwen3_vl", "Qwen3VLText", "mrope_interleaved"), ("qwen2_5_vl", "Qwen2_5_VL", "mrope_chunked")],
)
@pytest.mark.parametrize("sections", [[4, 2, 2], [2, 3, 3]])
def test_mrope_of_text_is_qwens(family: str, name: str, form: str, sections: list[int]) -> None:
    import torch

    module = modeling(family)
    parameters = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": sections}
    own = "Qwen3VLTextConfig" if family == "qwen3_vl" else "Qwen2_5_VLTextConfig"
    embedding = getattr(module, f"{name}RotaryEmbedding")(config(family, own, parameters))
    q, k = operands()
    cos, sin = embedding(heads_first(q), torch.tensor(GRID.T)[:, None])
    want = module.apply_rotary_pos_emb(heads_first(q), heads_first(k), cos, sin)
    agree(rope(q, k, GRID, 100.0, form=form, sections=sections), want)


@pytest.mark.original
def test_blocked_rope_is_that_of_qwens_vision_tower() -> None:
    import torch

    module = modeling("qwen3_vl")
    vision = pytest.importorskip("transformers.models.qwen3_vl.configuration_qwen3_vl").Qwen3VLVisionConfig(
        hidden_size=HEADS * DIM, num_heads=HEADS, rope_parameters={"rope_type": "axial", "rope_theta": 100.0}
    )
    vision.num_attention_heads = HEADS
    embedding = module.Qwen3VLVisionRotaryEmbedding(vision)
    q, k = operands()
    q, k = q, np.concatenate([k, k[:, :DIM]], axis=1)
    places = torch.tensor(GRID[:, 1:])
    cos, sin = embedding(torch.tensor(q), places)
    flat = [torch.tensor(x).float().reshape(len(x), -1, DIM) for x in (q, k)]
    want = module.apply_rotary_pos_emb_vision(*flat, cos, sin)
    got = rope(q, k, GRID, 100.0, form="mrope_blocked", sections=[0, DIM // 4, DIM // 4])
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs.reshape(len(q), -1).numpy(), rtol=0, atol=TOLERANCE)


@pytest.mark.original
def test_split_rope_is_that_of_gemma_4s_vision_tower() -> None:
    import torch

    module = modeling("gemma4")
    vision = pytest.importorskip("transformers.models.gemma4.configuration_gemma4").Gemma4VisionConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, head_dim=DIM, rope_parameters={"rope_type": "axial", "rope_theta": 100.0}
    )
    embedding = module.Gemma4VisionRotaryEmbedding(vision)
    q, _ = operands()
    places = torch.tensor(GRID[:, 1:])[None]
    x = torch.tensor(q).float().reshape(1, len(q), HEADS, DIM)
    cos, sin = embedding(x, places)
    want = module.apply_multidimensional_rope(x, cos, sin, places).reshape(len(q), -1).numpy()
    got = rope(q, None, GRID, 100.0, form="mrope_split", sections=[0, DIM // 4, DIM // 4])
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)


# -- what it does to single rows -----------------------------------------------------------------
def test_longrope_in_auto_is_decided_lane_by_lane() -> None:
    """A lane of 5 tokens is long for an original length of 4, its neighbour of 4 tokens is not."""
    short, long = [1.0, 1.0], [2.0, 4.0]
    q = np.tile([[1.0, 0.5, -1.0, 2.0]], (9, 1))
    positions = np.array([0, 1, 2, 3, 4, 0, 1, 2, 3])

    def turned(use: str) -> np.ndarray:
        value = scaling.longrope(short, long, 4, 1.5, use)
        return evaluate("elemwise.rope", Given(q), None, Given(positions, "i32"), 4, 100.0, scaling=value, mode="exact", lanes=[5, 4])

    np.testing.assert_array_equal(turned("auto"), np.concatenate([turned("long")[:5], turned("short")[5:]]))


def test_native_angles_are_products_in_f32() -> None:
    """At position 3000000 an f32 angle is a multiple of 1/4: the turn differs from the exact one, as stated."""
    q = np.array([[1.0, 0.0, 0.0, 0.0]])
    position, frequency = np.float32(3_000_000), np.float32(7.0 ** (-2 / 4))
    session_positions = Given(np.array([3_000_000]), "i32")
    got = evaluate("elemwise.rope", Given([[0.0, 1.0, 0.0, 0.0]]), None, session_positions, 4, 7.0)
    angle = position * frequency
    np.testing.assert_allclose(got[0], [0, np.cos(np.float64(angle)), 0, np.sin(np.float64(angle))], atol=1e-6)
    exact = evaluate("elemwise.rope", Given(q), None, session_positions, 4, 7.0, mode="exact")
    np.testing.assert_allclose(exact[0], [np.cos(3e6), 0, np.sin(3e6), 0], atol=1e-9)


def test_text_turns_alike_in_every_section() -> None:
    """Without positions of their own, the three columns of `mrope_positions` are the row's position."""
    trace = Tracer("p", "m", "d")
    q = trace.input("q", ValueType("tokens", 8, "f32"))
    positions = trace.input("mrope_positions", ValueType("tokens", 3, "i32"))
    for name, form, sections in (("chunked", "mrope_chunked", [2, 1, 1]), ("half", "half", None)):
        at_ = positions if sections else trace.input("positions", ValueType("tokens", 1, "i32"))
        trace.output(name, trace.call("elemwise.rope", [q, None, at_, 8, 100.0], {"form": form, "sections": sections}, ()), ())
    session = Session(trace.graph(), {})
    id = session.add_sequence()
    rows = np.random.default_rng(0).standard_normal((3, 8))
    outputs = session.run([Chunk(id, [0, 0, 0])], inputs={"q": rows})
    np.testing.assert_array_equal(outputs["chunked"], outputs["half"])
    grid = np.array([[0, 5, 1]])
    moved = session.run([Chunk(id, [0], positions=grid)], inputs={"q": rows[:1]})["chunked"]
    assert not np.array_equal(moved, outputs["chunked"][:1])


@pytest.mark.parametrize("form", ["half", "interleaved", "proportional"])
def test_inverse_undoes_a_turn(form: str) -> None:
    q, _ = operands()
    turned = rope(q, None, POSITIONS, 100.0, form=form, rotary_dim=8)
    np.testing.assert_allclose(rope(turned, None, POSITIONS, 100.0, form=form, rotary_dim=8, inverse=True), q, atol=1e-12)
