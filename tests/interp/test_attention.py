"""Attention over paged caches, compared with its definition in float64 (a loop over rows, heads and cells)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp import evaluate
from interp.evaluate import Given
from poem.errors import PoemError
from poem.graph import ValueType
from poem.tracer import Tracer
from tests.interp.attending import Attention, attentions, by_definition, chunk, native_bound


def sequences_of_passes(most: int) -> st.SearchStrategy[list[list[int]]]:
    """New rows of each lane, pass after pass; every lane takes part in every pass, perhaps without rows."""
    lanes = st.integers(1, 3)
    return lanes.flatmap(lambda count: st.lists(st.lists(st.integers(0, most), min_size=count, max_size=count), min_size=1, max_size=4))


@settings(max_examples=150, deadline=None)
@given(attentions(), sequences_of_passes(7), st.integers(1, 7), st.integers(0, 2**32 - 1), st.sampled_from(["reference", "fast"]))
def test_attention_is_its_definition(attention: Attention, passes: list[list[int]], page_size: int, seed: int, setting: str) -> None:
    rng = np.random.default_rng(seed)
    session = attention.session(mode="exact", setting=setting, page_size=page_size)
    ids = [session.add_sequence() for _ in passes[0]]
    k_cells = [np.zeros((0, attention.kv_heads * attention.head_dim)) for _ in ids]
    v_cells = [np.zeros((0, attention.kv_heads * attention.value_dim)) for _ in ids]
    for counts in passes:
        total = sum(counts)
        inputs: dict[str, np.ndarray] = {
            "q": rng.standard_normal((total, attention.heads * attention.head_dim)),
            "k": rng.standard_normal((total, k_cells[0].shape[1])),
            "v": rng.standard_normal((total, v_cells[0].shape[1])),
        }
        sinks = np.tile(attention.sinks, (total, 1)) if attention.sinks is not None else None
        if attention.sink_rows:
            sinks = inputs["sink_rows"] = rng.standard_normal((total, attention.heads))
        if attention.bias:
            inputs["bias"] = rng.standard_normal((total, attention.heads * attention.bias))
        if attention.selection:
            inputs["selection"] = rng.integers(-2, 8, (total, attention.selection))
        bounds = np.cumsum([0, *counts])
        masks: list[np.ndarray | None] = []
        for lane, count in enumerate(counts):
            rows = slice(bounds[lane], bounds[lane + 1])
            k_cells[lane] = np.concatenate([k_cells[lane], inputs["k"][rows]])
            v_cells[lane] = np.concatenate([v_cells[lane], inputs["v"][rows]])
            masks.append(rng.random((count, len(k_cells[lane]))) < 0.7 if attention.mask and rng.random() < 0.7 else None)
        outputs = session.run([chunk(id, count, mask) for id, count, mask in zip(ids, counts, masks, strict=True)], inputs=inputs)
        for lane, count in enumerate(counts):
            rows = slice(bounds[lane], bounds[lane + 1])
            part = {name: inputs[name][rows] for name in ("bias", "selection") if name in inputs}
            o, lse, _ = by_definition(
                attention, inputs["q"][rows], k_cells[lane], v_cells[lane], count,
                sinks=None if sinks is None else sinks[rows], mask=masks[lane], **part,
            )  # fmt: skip
            case = f"seed {seed}, lane {lane} of {counts} in passes {passes}, page size {page_size}, {attention}"
            np.testing.assert_allclose(outputs["o"][rows], o, rtol=1e-9, atol=1e-12, err_msg=case)
            if attention.options["lse"]:
                np.testing.assert_allclose(outputs["lse"][rows], lse, rtol=1e-9, atol=1e-12, err_msg=case)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.integers(1, 5), st.sampled_from(["reference", "fast"]))
def test_native_attention_is_within_the_rounding_of_f32(seed: int, cells: int, rows: int, setting: str) -> None:
    rng = np.random.default_rng(seed)
    attention = Attention(4, 2, 8, 8, 0.25)
    rows = min(rows, cells)
    session = attention.session(setting=setting, page_size=16)
    id = session.add_sequence()
    q, k, v = (np.clip(rng.standard_normal((cells, width)), -4, 4).astype(np.float32) for width in (32, 16, 16))
    if cells > rows:
        session.run([chunk(id, cells - rows)], inputs={"q": q[:-rows], "k": k[:-rows], "v": v[:-rows]})
    got = session.run([chunk(id, rows)], inputs={"q": q[-rows:], "k": k[-rows:], "v": v[-rows:]})["o"]
    want, _, magnitude = by_definition(attention, q[-rows:].astype(float), k.astype(float), v.astype(float), rows)
    over = np.abs(got - want) / native_bound(attention, cells, magnitude, 16.0)
    assert over.max() <= 1, f"seed {seed}, cells {cells}, rows {rows}: {over.max()} times the bound at {np.argmax(over)}"


# -- caches ------------------------------------------------------------------------------------
@pytest.mark.parametrize("setting", ["reference", "fast"])
def test_an_e4m3_cell_is_stored_to_nearest_and_saturates(setting: str) -> None:
    """One cell whose value planes are read back by attention over that cell alone."""
    attention = Attention(1, 1, 1, 5, 1.0, kv="e4m3")
    session = attention.session(setting=setting, page_size=1)
    stored = np.array([[0.3, 500, -1000, 0.0012, np.nan]])
    got = session.run([chunk(session.add_sequence(), 1)], inputs={"q": [[0.0]], "k": [[0.0]], "v": stored})["o"]
    np.testing.assert_array_equal(got, np.array([[0.3125, 448.0, -448.0, 0.001953125, np.nan]], np.float32))


@pytest.mark.parametrize(
    ("kv", "value", "want"),
    [
        ("bf16", [1.00390625, 1.01171875, 0.3], [1.0, 1.015625, 0.30078125]),
        ("f16", [1 + 2.0**-11, 70000.0, 0.1], [1.0, np.inf, 0.0999755859375]),
        ("f32", [0.1, 1e-40, 3.0], np.array([0.1, 1e-40, 3.0], np.float32)),
        ("e5m2", [0.3, 1e9, -1e9], [0.3125, 57344.0, -57344.0]),
    ],
)
@pytest.mark.parametrize("settings_", [{}, {"setting": "fast"}, {"mode": "exact", "casts": True}], ids=str)
def test_a_cell_is_cast_to_the_dtype_of_its_space(kv: str, value: list[float], want: Any, settings_: dict[str, Any]) -> None:
    session = Attention(1, 1, 1, 3, 1.0, kv=kv).session(**settings_)
    got = session.run([chunk(session.add_sequence(), 1)], inputs={"q": [[0.0]], "k": [[0.0]], "v": [value]})["o"]
    np.testing.assert_array_equal(got, np.array([want], got.dtype))


def test_exact_mode_stores_cells_unrounded() -> None:
    session = Attention(1, 1, 1, 1, 1.0, kv="e4m3").session(mode="exact")
    got = session.run([chunk(session.add_sequence(), 1)], inputs={"q": [[0.0]], "k": [[0.0]], "v": [[0.3]]})["o"]
    assert got[0, 0] == 0.3


@pytest.mark.parametrize("setting", ["reference", "fast"])
def test_an_infinite_cell_reaches_only_rows_that_see_it(setting: str) -> None:
    """Row 0 does not see cell 1, whose value is infinite: 0 * infinity must not make it NaN."""
    session = Attention(1, 1, 1, 2, 1.0).session(setting=setting)
    inputs = {"q": [[0.0]] * 3, "k": [[0.0]] * 3, "v": [[1.0, 2.0], [np.inf, 4.0], [1.0, np.nan]]}
    got = session.run([chunk(session.add_sequence(), 3)], inputs=inputs)["o"]
    np.testing.assert_array_equal(got, np.array([[1, 2], [np.inf, 3], [np.inf, np.nan]], np.float32))


@pytest.mark.parametrize("setting", ["reference", "fast"])
def test_a_nan_key_spoils_only_rows_that_see_it(setting: str) -> None:
    session = Attention(1, 1, 1, 1, 1.0).session(setting=setting)
    inputs = {"q": [[1.0]] * 2, "k": [[0.0], [np.nan]], "v": [[1.0], [2.0]]}
    got = session.run([chunk(session.add_sequence(), 2)], inputs=inputs)["o"]
    np.testing.assert_array_equal(got, np.array([[1], [np.nan]], np.float32))


def test_a_window_drops_pages_and_frees_them_for_others() -> None:
    attention = Attention(1, 1, 1, 1, 1.0, space_window=4, options={"window": 4})
    session = attention.session(page_size=2)
    first, second = session.add_sequence(), session.add_sequence()
    rng = np.random.default_rng(0)
    cells = {first: np.zeros((0, 1)), second: np.zeros((0, 1))}
    for step in range(20):
        id = (first, second)[step % 2]
        q, k, v = (rng.standard_normal((1, 1)).astype(np.float32) for _ in range(3))
        cells[id] = np.concatenate([cells[id], v])
        got = session.run([chunk(id, 1)], inputs={"q": q * 0, "k": k, "v": v})["o"]
        np.testing.assert_allclose(got[0, 0], cells[id][-4:].mean(), rtol=1e-6)
    assert session._tables[0].page_count <= 2 * 3, "each sequence needs at most three pages of two cells for a window of four"


def test_reading_past_the_window_of_a_space_is_an_error_at_the_op() -> None:
    trace = Tracer("p", "m", "d")
    pages = trace.cache_handle(trace.add_kv(trace.add_space("f32", 2), "kv", [1], 1))
    q = trace.input("q", ValueType("tokens", 1, "f32"))
    trace.call("attn.kv_append_shared", [q, pages], {}, ())
    trace.output("o", trace.call("attn.attend", [q, pages, trace.handle, 1, 1, 1.0], {"window": 2}, ()), ())
    graph = trace.graph()
    graph.nodes[1].attributes["window"] = None  # what the tracer would refuse
    from interp import Session

    session = Session(graph, {}, page_size=1)
    id = session.add_sequence()
    session.run([chunk(id, 2)], inputs={"q": [[1.0]] * 2})
    with pytest.raises(PoemError, match=r"ops\.attn\.attend: row 0: cell 0 .* its page was dropped") as refused:
        session.run([chunk(id, 1)], inputs={"q": [[1.0]]})
    assert refused.value.code == "run.unwritten-cell"


# -- slots named by the package ----------------------------------------------------------------
def appended(slots: dict[str, Any], rows: int, page_size: int = 2) -> Any:
    """One pass whose append names slots, then attention over the lane."""
    from interp import Session
    from poem.errors import Frame

    trace = Tracer("p", "m", "d")
    pages = trace.cache_handle(trace.add_kv(trace.add_space("f32"), "kv", [1], 1))
    q = trace.input("q", ValueType("tokens", 1, "f32"))
    ids = {name: trace.input(name, ValueType("tokens", 1, "i32")) for name in slots}
    where = (Frame("a.poem", 7, "forward"),)
    trace.call("attn.kv_append_shared", [q, pages], {f"write_{name}": value for name, value in ids.items()}, where)
    trace.output("o", trace.call("attn.attend", [q, pages, trace.handle, 1, 1, 0.0], {}, where), ())
    session = Session(trace.graph(), {}, page_size=page_size)
    values = {"q": np.arange(1.0, rows + 1)[:, None], **slots}
    return session.run([chunk(session.add_sequence(), rows)], inputs=values)["o"]


def test_named_slots_are_written_in_place_of_the_rows_own() -> None:
    np.testing.assert_array_equal(appended({"page": [0, 0, 1], "offset": [1, 0, 0]}, 3), np.array([[2], [1.5], [2]], np.float32))


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ({"page": [0, 0], "offset": [0, 2]}, r"a\.poem:7: run: ops\.attn\.attend: row 1: cell 1 of the sequence was never written"),
        ({"page": [0, 0], "offset": [-1, 1]}, r"ops\.attn\.attend: row 0: cell 0 of the sequence was never written"),
        ({"page": [0, 9], "offset": [0, 1]}, r"ops\.attn\.kv_append_shared: row 1: write_page is 9, but there are 1 pages"),
        ({"page": [0, 0], "offset": [1, 1]}, r"ops\.attn\.kv_append_shared: row 1: slot \(0, 1\) is written twice"),
    ],
    ids=["skipped", "negative-offset", "no-such-page", "twice"],
)
def test_bad_slots_are_errors_that_name_op_and_row(slots: dict[str, Any], message: str) -> None:
    with pytest.raises(PoemError) as refused:
        appended(slots, 2)
    assert refused.value.code.startswith("run.")
    import re

    assert re.search(message, str(refused.value)), str(refused.value)


# -- dense -------------------------------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=3), st.integers(0, 2),
    st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_dense_attention_is_its_definition(
    segments: list[tuple[int, int]], spare: int, causal: bool, biased: bool, tagged: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    q_bounds = np.cumsum([spare, *(a for a, _ in segments)])
    k_bounds = np.cumsum([spare, *(b for _, b in segments)])
    q_rows, k_rows = int(q_bounds[-1]) + spare, int(k_bounds[-1]) + spare
    q, k, v = rng.standard_normal((q_rows, 4)), rng.standard_normal((k_rows, 2)), rng.standard_normal((k_rows, 3))
    bias = rng.standard_normal((2, 5))
    q_tags, k_tags = rng.integers(-1, 2, q_rows), rng.integers(-1, 2, k_rows)
    options: dict[str, Any] = {"causal": causal, "lse": True}
    if biased:
        options["bias"] = Given(bias, "f32", 2)
    if tagged:
        options["tags"] = [Given(q_tags, "i32", "patches"), Given(k_tags, "i32", "tokens")]
    o, lse = evaluate(
        "attn.dense", Given(q, "f32", "patches"), Given(k), Given(v), Given(q_bounds, "i32", "lanes+1"),
        Given(k_bounds, "i32", "lanes+1"), 2, 1, 0.5, mode="exact", **options,
    )  # fmt: skip
    want_o, want_lse = np.zeros((q_rows, 6)), np.full((q_rows, 2), -np.inf)
    for segment, (n, m) in enumerate(segments):
        for i in range(n):
            row = q_bounds[segment] + i
            for h in range(2):
                terms = []
                for j in range(m):
                    cell = k_bounds[segment] + j
                    hidden = (causal and j > i + m - n) or (tagged and q_tags[row] >= 0 and q_tags[row] != k_tags[cell])
                    if not hidden:
                        s = 0.5 * q[row, 2 * h : 2 * h + 2] @ k[cell] + (bias[h, min(max(j - i + 2, 0), 4)] if biased else 0.0)
                        terms.append((np.exp(s), v[cell]))
                if terms:
                    d = sum(weight for weight, _ in terms)
                    want_o[row, 3 * h : 3 * h + 3] = sum(weight * value for weight, value in terms) / d
                    want_lse[row, h] = np.log2(d)
    np.testing.assert_allclose(o, want_o, rtol=1e-9, atol=1e-12, err_msg=f"seed {seed}")
    np.testing.assert_allclose(lse, want_lse, rtol=1e-9, atol=1e-12, err_msg=f"seed {seed}")


@pytest.mark.parametrize(
    ("q_bounds", "k_bounds", "message"),
    [([0, 2, 1], [0, 1, 2], "q_indptr has 1 at 2"), ([0, 1, 2], [0, 1, 3], "kv_indptr has 3 at 2")],
)
def test_bounds_that_decrease_or_leave_the_rows_are_errors(q_bounds: list[int], k_bounds: list[int], message: str) -> None:
    rows = Given(np.zeros((2, 2)))
    with pytest.raises(PoemError, match=message):
        evaluate("attn.dense", rows, rows, rows, Given(q_bounds, "i32", "lanes+1"), Given(k_bounds, "i32", "lanes+1"), 2, 1, 1.0)
