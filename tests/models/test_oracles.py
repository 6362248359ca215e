"""The packages compute what the original classes compute."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from conformance.originals.golden import require_equal
from conformance.originals.minis import MINIS, Mini
from interp import Session
from poem.batch import Chunk
from poem.checkpoint import open_checkpoint
from poem.importer import plan_import
from tests.models.packages import golden, package

CASES = pytest.mark.parametrize("mini", MINIS.values(), ids=MINIS)


def expected(mini: Mini) -> dict[str, np.ndarray]:
    return load_file(golden(mini) / "expected.safetensors")


def prompt(mini: Mini) -> list[int]:
    return [int(id) for id in load_file(golden(mini) / "inputs.safetensors")["input_ids"].ravel()]


def session(mini: Mini, dtype: str, mode: str, **options: int) -> Session:
    deployment = f"{mini.model}-{dtype}-kv-{dtype}"
    plan = plan_import(open_checkpoint(golden(mini)), [package(mini.package)], deployment=deployment)
    return Session(package(mini.package).trace(deployment), plan.weights, mode=mode, **options)


def logits(running: Session, chunks: Iterable[list[int]]) -> np.ndarray:
    """Logits [tokens, vocab] of one sequence, given chunk by chunk."""
    sequence = running.add_sequence()
    return np.concatenate([running.run([Chunk(sequence, chunk, "all")])["logits"] for chunk in chunks])


@CASES
@pytest.mark.parametrize(("dtype", "mode"), [("f32", "native"), ("f32", "exact"), ("bf16", "exact")])
def test_logits_of_a_prompt_are_the_original_classs(mini: Mini, dtype: str, mode: str) -> None:
    got = logits(session(mini, dtype, mode), [prompt(mini)])
    require_equal({"logits": got}, {"logits": expected(mini)["logits"]})


@CASES
@pytest.mark.parametrize("mode", ["native", "exact"])
def test_tokens_decoded_one_at_a_time_are_the_original_classs(mini: Mini, mode: str) -> None:
    running, want = session(mini, "f32", mode), expected(mini)
    sequence, feed, steps, chosen = running.add_sequence(), prompt(mini), [], []
    for _ in want["greedy.logits"]:
        steps.append(running.run([Chunk(sequence, feed)])["logits"][0])
        feed = [int(steps[-1].argmax())]
        chosen += feed
    assert prompt(mini) + chosen == want["greedy.ids"].tolist()
    require_equal({"greedy.logits": np.stack(steps)}, {"greedy.logits": want["greedy.logits"]})


@CASES
def test_a_prompt_in_pieces_gives_the_bits_of_the_whole(mini: Mini) -> None:
    ids = prompt(mini)
    whole = logits(session(mini, "bf16", "native"), [ids])
    pieces = {"one at a time": [[id] for id in ids], "5, 1, the rest": [ids[:5], ids[5:6], ids[6:]]}
    for name, chunks in pieces.items():
        for page_size in (1, 16):
            got = logits(session(mini, "bf16", "native", page_size=page_size), chunks)
            np.testing.assert_array_equal(got, whole, err_msg=f"{name}, pages of {page_size}")


@CASES
def test_a_prompt_in_pieces_gives_the_exact_values_of_the_whole(mini: Mini) -> None:
    ids = prompt(mini)
    whole, single = logits(session(mini, "f32", "exact"), [ids]), logits(session(mini, "f32", "exact"), [[id] for id in ids])
    np.testing.assert_allclose(single, whole, rtol=0, atol=1e-12 * np.abs(whole).max())


@pytest.mark.original
@CASES
def test_a_bf16_run_is_as_near_to_the_truth_as_the_original_classs_own(mini: Mini) -> None:
    """Rounding at each op costs what it costs the original in bf16; the two round at slightly other places."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(Path(golden(mini)), dtype=torch.bfloat16, attn_implementation="eager").eval()
    with torch.no_grad():
        original = model(input_ids=torch.tensor([prompt(mini)])).logits[0].float().numpy()
    want = expected(mini)["logits"]

    def distance(got: np.ndarray) -> float:
        return float(np.sqrt(np.mean((got - want) ** 2)))

    ours, theirs = distance(logits(session(mini, "bf16", "native"), [prompt(mini)])), distance(original)
    assert ours < 1.25 * theirs, f"root mean square error {ours:.4g}, the original's {theirs:.4g}"
