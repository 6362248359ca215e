"""Bounds of attention and of rotary positions hold for every f32 run, and are not so loose that they would hide a fault."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance.arithmetic import NATIVE, ORIGINAL
from conformance.bounds import Cells, local_bound
from poem.batch import Chunk, Geometry, geometry
from tests.conformance.libraries import LIBRARIES, LOOSEST, SEEDS, TORCH, NumPy, draw, needs_torch, torch, worst_fraction


def softmax_attention(
    m: Any, q: Any, k: Any, v: Any, head_dim: int, kv_heads: int, scale: float, window: int | None, softcap: float | None, sinks: Any
) -> Any:
    """One lane, no cells before: q [N, Hq*D], k [N, Hkv*D], v [N, Hkv*Dv]."""
    rows, heads = q.shape[0], q.shape[1] // head_dim
    p, j = np.arange(rows)[:, None], np.arange(rows)[None, :]
    allowed = (j <= p) & (p - j < (window or rows))
    mask = np.where(allowed, 0.0, -np.inf).astype(np.float32)
    mask = torch.from_numpy(mask) if m is TORCH else mask.astype(q.dtype)
    out = []
    for h in range(heads):
        g = h // (heads // kv_heads)
        width = v.shape[1] // kv_heads
        s = (q[:, h * head_dim : (h + 1) * head_dim] @ k[:, g * head_dim : (g + 1) * head_dim].T) * scale
        if softcap is not None:
            s = softcap * m.tanh(s / softcap)
        s = s + mask
        if sinks is not None:
            s = m.concatenate([s, s[:, :1] * 0 + sinks[h]], 1)
        e = m.exp(s - m.max(s))
        e = (e / m.sum(e))[:, :rows]
        out.append(e @ v[:, g * width : (g + 1) * width])
    return m.concatenate(out, 1)


def rope(
    m: Any, q: Any, k: Any, positions: Any, head_dim: int, theta: float, rotated: int, form: str, linear: float, inverse: bool
) -> tuple[Any, Any]:
    """Frequencies as transformers computes them, in the precision of q."""
    kind = torch.from_numpy if m is TORCH else np.asarray
    real = np.float32 if m is TORCH else q.dtype.type
    exponents = np.arange(0, rotated, 2).astype(real) / real(rotated)
    frequencies = kind((real(1) / np.power(real(theta), exponents)) / real(linear))
    angle = kind(positions.astype(real))[:, None] * frequencies
    cos, sin = m.cos(angle), m.sin(angle)
    if inverse:
        sin = -sin
    half = rotated // 2
    first, second = (np.arange(half), np.arange(half) + half) if form == "half" else (np.arange(half) * 2, np.arange(half) * 2 + 1)

    def turn(x: Any) -> Any:
        out = x.clone() if m is TORCH else x.copy()
        for h in range(x.shape[1] // head_dim):
            a, b = x[:, h * head_dim + first], x[:, h * head_dim + second]
            out[:, h * head_dim + first], out[:, h * head_dim + second] = a * cos - b * sin, b * cos + a * sin
        return out

    return turn(q), turn(k)


def one_lane(rows: int) -> Geometry:
    return geometry([Chunk(0, [0] * rows)], {0: 0}, [])


@pytest.mark.parametrize("options", [{}, {"window": 3}, {"softcap": 1.5}, {"sinks": True}], ids=str)
@pytest.mark.parametrize("flavour", ["normal", "integers", "sharp", "cancelling"])
def test_attention_in_f32_stays_within_its_bound(flavour: str, options: dict[str, Any]) -> None:
    closest = 0.0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        rows, head_dim, heads, kv_heads, width = 9, 16, 4, 2, 12
        sharp = 6.0 if flavour == "sharp" else 1.0
        kind = "normal" if flavour == "sharp" else flavour
        q, k = draw(rng, (rows, heads * head_dim), kind) * np.float32(sharp), draw(rng, (rows, kv_heads * head_dim), kind)
        v = draw(rng, (rows, kv_heads * width), kind)
        sinks = draw(rng, (heads,), "normal") if options.get("sinks") else None
        window, softcap, scale = options.get("window"), options.get("softcap"), 0.25

        def run(m: Any, kind: Any) -> np.ndarray:
            given = [x if x is None else torch.from_numpy(x) if m is TORCH else x.astype(kind) for x in (q, k, v, sinks)]  # noqa: B023
            out = softmax_attention(m, *given[:3], head_dim, kv_heads, scale, window, softcap, given[3])  # noqa: B023
            return out.numpy() if m is TORCH else out

        exact = run(NumPy, np.float64)
        arguments = {
            "q": q.astype(np.float64), "cache": Cells([(k.astype(np.float64), v.astype(np.float64))], "bf16"), "inputs": one_lane(rows),
            "head_dim": head_dim, "kv_heads": kv_heads, "sm_scale": scale, "window": window, "causal": True, "softcap": softcap,
            "mask": None, "sinks": None if sinks is None else sinks.astype(np.float64), "bias": None, "selection": None, "ratio": 1,
            "log_scaling": None, "lse": False,
        }  # fmt: skip
        bound = local_bound("attn.attend", arguments, (exact,), ("f32",), ORIGINAL)[0].error
        for name, library in LIBRARIES:
            got = run(library, np.float32)
            closest = max(closest, worst_fraction(got, exact, bound, f"attend {flavour} {options} seed {seed} {name}"))
        if not options and torch is not None:
            parts = [torch.from_numpy(x.reshape(rows, -1, d).swapaxes(0, 1)[None]) for x, d in ((q, head_dim), (k, head_dim), (v, width))]
            fused = (
                torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True, scale=scale, enable_gqa=True)[0]
                .transpose(0, 1)
                .reshape(rows, -1)
            )
            worst_fraction(fused.numpy(), exact, bound, f"attend {flavour} seed {seed} torch's fused kernel")
        rounded = [x.astype(ml_dtypes.bfloat16).astype(np.float32) for x in (k, v)]
        k, v = rounded
        cast = run(NumPy, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
        native = local_bound("attn.attend", arguments, (exact,), ("bf16",), NATIVE)[0].error
        worst_fraction(cast, exact, native, f"attend {flavour} {options} seed {seed} with cells and result in bf16")
    print(f"attend {flavour} {options}: closest run at {closest:.4f} of the bound")
    assert closest * LOOSEST > 1


@pytest.mark.parametrize("form", ["half", "interleaved"])
@pytest.mark.parametrize(("theta", "linear", "inverse"), [(10000.0, 1.0, False), (500000.0, 4.0, True)])
def test_rope_in_f32_stays_within_its_bound_at_short_and_long_positions(form: str, theta: float, linear: float, inverse: bool) -> None:
    closest = 0.0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        head_dim, rotated = 16, 12
        positions = np.array([0, 1, 7, 100, 4095, 131071])
        q, k = draw(rng, (6, 2 * head_dim), "normal"), draw(rng, (6, head_dim), "normal")

        def run(m: Any, kind: Any) -> tuple[np.ndarray, ...]:
            given = [torch.from_numpy(x) if m is TORCH else x.astype(kind) for x in (q, k)]  # noqa: B023
            return tuple(map(np.asarray, rope(m, *given, positions, head_dim, theta, rotated, form, linear, inverse)))  # noqa: B023

        exact = run(NumPy, np.float64)
        arguments = {
            "q": q.astype(np.float64), "k": k.astype(np.float64), "positions": positions, "head_dim": head_dim, "theta": theta,
            "rotary_dim": rotated, "form": form, "part": "first", "scaling": {"kind": "linear", "factor": linear}, "sections": None,
            "inverse": inverse,
        }  # fmt: skip
        bounds = local_bound("elemwise.rope", arguments, exact, ("f32", "f32"), ORIGINAL, one_lane(6))
        for i in (0, 1):
            np.testing.assert_allclose(bounds[i].value, exact[i], rtol=0, atol=1e-9)
            assert not bounds[i].error.reshape(6, -1, head_dim)[..., rotated:].any(), "channels outside the pairs are copies"
            for name, library in LIBRARIES:
                got = run(library, np.float32)
                closest = max(closest, worst_fraction(got[i], exact[i], bounds[i].error, f"rope {form} seed {seed} {name}"))
    print(f"rope {form}: closest run at {closest:.4f} of the bound")
    assert closest * LOOSEST > 1


@pytest.mark.original
@needs_torch
@pytest.mark.parametrize("kind", ["llama3", "yarn", "linear", "default"])
def test_the_frequencies_of_transformers_are_within_their_bound(kind: str) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from conformance.bounds.rotary import _powers, _scaled

    theta, head_dim = 500000.0, 64
    given = {
        "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position": 8192},
        "yarn": {
            "factor": 4.0,
            "original_max_position": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "attention_factor": 1.0,
            "truncate": True,
        },
        "linear": {"factor": 3.0},
        "default": {},
    }[kind]
    parameters = {name.replace("_position", "_position_embeddings"): value for name, value in given.items()}
    config = LlamaConfig(
        head_dim=head_dim, hidden_size=128, num_attention_heads=2, max_position_embeddings=131072,
        rope_parameters={"rope_type": kind, "rope_theta": theta, **parameters},
    )  # fmt: skip
    if kind == "default":
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        got = LlamaRotaryEmbedding(config).inv_freq.numpy()
    else:
        got = ROPE_INIT_FUNCTIONS[kind](config, "cpu")[0].numpy()
    powers = _powers(ORIGINAL, theta, np.arange(0, head_dim, 2) / head_dim)
    scaling = None if kind == "default" else {"kind": kind, **given}
    frequencies, _ = _scaled(ORIGINAL, powers, scaling, theta, head_dim, np.zeros(1))
    fraction = worst_fraction(got, frequencies.value, np.broadcast_to(frequencies.error, got.shape), kind)
    assert fraction * LOOSEST > 1
