"""In the reference setting a row's result is the same, bit for bit, alone or in any batch, at once or in chunks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp import Session
from interp.attention import KEY_BLOCK
from interp.numeric import ROW_TILES, Numeric
from poem.batch import Chunk
from poem.graph import Node
from tests.interp.attending import Attention, attentions, chunk, native_bound
from tests.interp.decoder import Decoder

VARIANTS = {
    "bf16": Decoder(),
    "f32": Decoder(dtype="f32", kv="f32"),
    "f16-e4m3": Decoder(dtype="f16", kv="e4m3"),
    "wide": Decoder(hidden=300, heads=3, kv_heads=1, head_dim=20, inter=130, vocab=70),
}


def alone(decoder: Decoder, tokens: list[int], page_size: int) -> np.ndarray:
    """The logits of every token of one sequence, computed at once: [tokens, vocab]."""
    graph, weights = decoder.trace()
    session = Session(graph, weights, page_size=page_size)
    return session.run([Chunk(session.add_sequence(), tokens, readouts="all")])["logits"]


def in_company(decoder: Decoder, sequences: list[list[int]], page_size: int, rng: np.random.Generator, most: int) -> list[np.ndarray]:
    """The same logits, with sequences joining and leaving at random, in random order and random chunks."""
    graph, weights = decoder.trace()
    session = Session(graph, weights, page_size=page_size)
    ids: dict[int, int] = {}
    done = [0] * len(sequences)
    logits: list[list[np.ndarray]] = [[] for _ in sequences]
    while any(count < len(tokens) for count, tokens in zip(done, sequences, strict=True)):
        for index in range(len(sequences)):
            if index not in ids and rng.random() < 0.5:
                ids[index] = session.add_sequence()
        present = [index for index in ids if done[index] < len(sequences[index]) and rng.random() < 0.8]
        rng.shuffle(present)
        chunks = []
        for index in present:
            count = int(rng.integers(0, min(most, len(sequences[index]) - done[index]) + 1))
            chunks.append(Chunk(ids[index], sequences[index][done[index] : done[index] + count], readouts="all"))
            done[index] += count
        rows = session.run(chunks)["logits"]
        bounds = np.cumsum([0, *(len(chunk.tokens) for chunk in chunks)])
        for place, index in enumerate(present):
            logits[index].append(rows[bounds[place] : bounds[place + 1]])
        for index in [index for index in ids if done[index] == len(sequences[index])]:
            session.drop_sequence(ids.pop(index))
            done[index] = len(sequences[index])
            if rng.random() < 0.5:
                break
    return [np.concatenate(parts) for parts in logits]


def same_bits(got: np.ndarray, want: np.ndarray, case: str) -> None:
    differ = got.view(np.uint32) != want.view(np.uint32)
    assert not differ.any(), f"{case}: rows {np.unique(np.argwhere(differ)[:, 0])} differ, first {got[differ][:3]} from {want[differ][:3]}"


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    page_size=st.integers(1, 20), seed=st.integers(0, 2**32 - 1), most=st.sampled_from([1, 3, 40]),
)  # fmt: skip
def test_a_row_is_the_same_in_any_company(variant: str, lengths: list[int], page_size: int, seed: int, most: int) -> None:
    decoder = VARIANTS[variant]
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, decoder.vocab, length).tolist() for length in lengths]
    together = in_company(decoder, sequences, page_size, rng, most)
    for index, tokens in enumerate(sequences):
        case = f"sequence {index} of lengths {lengths}, page size {page_size}, seed {seed}, chunks up to {most}"
        same_bits(together[index], alone(decoder, tokens, page_size=16), case)


@pytest.mark.parametrize("length", [KEY_BLOCK - 1, KEY_BLOCK + 1, 2 * KEY_BLOCK + 40])
def test_sequences_of_several_key_blocks_are_the_same_in_chunks(length: int) -> None:
    rng = np.random.default_rng(length)
    tokens = rng.integers(0, 37, length).tolist()
    decoder = Decoder(window=KEY_BLOCK + 7)
    same_bits(in_company(decoder, [tokens, tokens[:50]], 7, rng, 100)[0], alone(decoder, tokens, 16), f"length {length}")


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 500), st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_a_product_gives_a_row_the_same_bits_at_every_place(rows: int, k: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((rows, k), np.float32), rng.standard_normal((m, k), np.float32)
    numeric = Numeric()
    together = numeric.matmul(x, w)
    picked = rng.permutation(rows)[: rng.integers(1, rows + 1)]
    same_bits(numeric.matmul(x[picked], w), together[picked], f"rows {rows}, k {k}, m {m}, seed {seed}")
    same_bits(numeric.matmul(x[:1], w), together[:1], f"one row, k {k}, m {m}, seed {seed}")


def test_products_over_leading_axes_are_those_of_their_parts() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 1, 21, 10), np.float32), rng.standard_normal((3, 2, 7, 10), np.float32)
    numeric = Numeric()
    together = numeric.matmul(x, w)
    assert together.shape == (3, 2, 21, 7)
    for i in range(3):
        for j in range(2):
            same_bits(together[i, j], numeric.matmul(x[i, 0], w[i, j]), f"part {i}, {j}")


def test_row_tiles_start_with_the_largest() -> None:
    assert list(ROW_TILES) == sorted(ROW_TILES, reverse=True)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_exact_mode_agrees_in_chunks_to_the_rounding_of_float64(seed: int) -> None:
    rng = np.random.default_rng(seed)
    decoder = Decoder()
    graph, weights = decoder.trace()
    tokens = rng.integers(0, decoder.vocab, 20).tolist()

    def logits(cuts: list[int]) -> np.ndarray:
        session = Session(graph, weights, mode="exact")
        id = session.add_sequence()
        parts = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, 20], strict=True)]
        return np.concatenate([session.run([Chunk(id, part, readouts="all")])["logits"] for part in parts])

    np.testing.assert_allclose(logits(sorted(rng.integers(1, 20, 3).tolist())), logits([]), rtol=1e-12, atol=1e-12)


# -- attention with every option ---------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(attentions(), st.integers(1, 25), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_attention_with_any_option_is_the_same_in_chunks_and_in_company(
    attention: Attention, length: int, page_size: int, seed: int
) -> None:
    if not attention.options.get("causal", True):
        attention.options.pop("causal")  # without causality a chunk sees less than the whole does
    rng = np.random.default_rng(seed)
    values = {
        "q": rng.standard_normal((length, attention.heads * attention.head_dim)),
        "k": rng.standard_normal((length, attention.kv_heads * attention.head_dim)),
        "v": rng.standard_normal((length, attention.kv_heads * attention.value_dim)),
        "sink_rows": rng.standard_normal((length, attention.heads)),
        "bias": rng.standard_normal((length, attention.heads * attention.bias)),
        "selection": rng.integers(-2, 8, (length, attention.selection)),
    }
    unused = {"sink_rows": attention.sink_rows, "bias": attention.bias, "selection": attention.selection}
    values = {name: array for name, array in values.items() if unused.get(name, True)}
    mask = rng.random((length, length)) < 0.7 if attention.mask else None
    alone_ = attention.session(page_size=16)
    whole = alone_.run([chunk(alone_.add_sequence(), length, mask)], inputs=values)
    together = attention.session(page_size=page_size)
    mine, other = together.add_sequence(), together.add_sequence()
    parts: dict[str, list[np.ndarray]] = {name: [] for name in whole}
    done = 0
    while done < length:
        count = int(rng.integers(1, length - done + 1))
        rows = slice(done, done + count)
        done += count
        guests = int(rng.integers(0, 20))
        inputs = {}
        for name, array in values.items():
            guest = rng.standard_normal((guests, array.shape[1])) if array.dtype == float else np.zeros((guests, array.shape[1]), int)
            inputs[name] = np.concatenate([guest, array[rows]])
        own = chunk(mine, count, None if mask is None else np.ascontiguousarray(mask[rows, :done]))
        for name, array in together.run([chunk(other, guests), own], inputs=inputs).items():
            parts[name].append(array[guests:])
    for name, array in whole.items():
        same_bits(np.concatenate(parts[name]), array, f"{name}, length {length}, page size {page_size}, seed {seed}, {attention}")


# -- the fast setting ----------------------------------------------------------------------------
@pytest.mark.parametrize("cuts", [[], [1, 2, 5], [13, 14, 15, 16, 17]])
def test_each_op_of_the_fast_setting_is_within_the_rounding_of_f32_of_the_reference(cuts: list[int]) -> None:
    """Op by op, on the reference's own operands. Products and attention may sum in another order; nothing else may differ.

    Two sums of K products, in any order, differ by at most 2 K u sum |x w|, u = 2^-24. Attention: `native_bound` of each side.
    """
    decoder = Decoder(dtype="f32", kv="f32")
    graph, weights = decoder.trace()
    tokens = np.random.default_rng(5).integers(0, decoder.vocab, 20).tolist()
    slow, fast = Session(graph, weights), Session(graph, weights, setting="fast")
    ids = slow.add_sequence(), fast.add_sequence()
    cells: dict[int, dict[str, np.ndarray]] = {}
    compared = 0
    for first, stop in zip([0, *cuts], [*cuts, 20], strict=True):
        values: dict[int, np.ndarray] = {input_.value: np.zeros(0) for input_ in graph.inputs}

        def record(node: Node, results: tuple[np.ndarray, ...], values: dict[int, np.ndarray] = values) -> None:
            values.update(zip(node.results, results, strict=True))

        def operand(node: Node, name: str, values: dict[int, np.ndarray] = values) -> np.ndarray:
            return values[node.operands[name].id]  # type: ignore[union-attr]

        def compare(node: Node, results: tuple[np.ndarray, ...], values: dict[int, np.ndarray] = values) -> tuple[np.ndarray, ...]:
            nonlocal compared
            forced = tuple(values[id] for id in node.results)
            bound: np.ndarray | float = 0.0
            if node.op in ("linear.matmul", "linear.lm_head"):
                x, w = np.abs(operand(node, "x")), np.abs(weights[graph.params[node.operands["w"].id].name].decode())  # type: ignore[union-attr]
                bound = 2 * x.shape[1] * 2.0**-24 * (x.astype(float) @ w.T)
            elif node.op == "attn.kv_append":
                cache = cells.setdefault(node.operands["cache"].id, {"k": np.zeros((0, 1)), "v": np.zeros((0, 1))})  # type: ignore[union-attr]
                for name in cache:
                    cache[name] = operand(node, name) if not cache[name].size else np.concatenate([cache[name], operand(node, name)])
            elif node.op == "attn.attend":
                cache, q = cells[node.operands["cache"].id], operand(node, "q")  # type: ignore[union-attr]
                size = np.abs(q).max() * np.abs(cache["k"]).max()
                magnitude = np.full(forced[0].shape, np.abs(cache["v"]).max())
                attention = Attention(decoder.heads, decoder.kv_heads, decoder.head_dim, decoder.head_dim, decoder.head_dim**-0.5)
                bound = 2 * native_bound(attention, len(cache["k"]), magnitude, size, node.attributes["softcap"] or 0.0)
            for got, want in zip(results, forced, strict=True):
                over = np.abs(got.astype(float) - want) > bound
                assert not over.any(), f"{node.op} at {node.where[-1].line}: {np.argwhere(over)[:3].tolist()}"
                compared += 1
            return forced

        slow.run([Chunk(ids[0], tokens[first:stop], readouts="all")], record)
        fast.run([Chunk(ids[1], tokens[first:stop], readouts="all")], compare)
    assert compared >= len(graph.nodes) - 2
