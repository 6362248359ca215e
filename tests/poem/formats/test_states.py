"""What a checkpoint states about itself: agreement is by value, and only a statement of the same kind can disagree."""

from typing import Any

import pytest

from poem.checkpoint import Checkpoint
from poem.errors import Frame
from poem.formats.declared import State
from poem.formats.states import disagreement

CONFIG = {
    "hidden": 4096,
    "eps": 9.999999747378752e-06,
    "tied": False,
    "type": "llama",
    "rope": {"factor": 8.0},
    "kinds": ["full"],
    "flag": 1,
    "huge": 10**400,
}


@pytest.mark.parametrize(
    ("key", "want", "agrees"),
    [
        ("hidden", 4096, True), ("hidden", 4096.0, True), ("hidden", 5120, False),
        ("eps", 1e-5, True), ("eps", 1.1e-5, False),
        ("tied", False, True), ("tied", True, False), ("tied", 0, True), ("flag", True, True),
        ("type", "llama", True), ("type", "qwen2", False), ("type", 3, True), ("hidden", "4096", True),
        ("rope.factor", 8, True), ("rope.factor", 32, False), ("kinds.0", "full", True), ("kinds.0", "sliding", False),
        ("huge", 1, False), ("huge", 1.5, False), ("absent", 1, True), ("rope", 1, True), ("kinds", "full", True),
    ],
)  # fmt: skip
def test_a_state_agrees_or_disagrees_by_value(key: str, want: Any, agrees: bool) -> None:
    fault = disagreement(State("config", key, want), Checkpoint("x", "safetensors", {}, config=CONFIG))
    assert (fault is None) is agrees


@pytest.mark.parametrize(("want", "agrees"), [(2, True), (32, True), (33, False)])
def test_or_deeper_accepts_a_larger_number(want: int, agrees: bool) -> None:
    fault = disagreement(State("config", "n", want, or_deeper=True), Checkpoint("x", "safetensors", {}, config={"n": 32}))
    assert (fault is None) is agrees


def test_attributes_are_the_containers_metadata() -> None:
    checkpoint = Checkpoint("x", "gguf", {}, metadata={"llama.block_count": 30})
    assert disagreement(State("attribute", "llama.block_count", 30), checkpoint) is None
    fault = disagreement(State("attribute", "llama.block_count", 31, where=(Frame("toy.poem", 9, "formats"),)), checkpoint)
    assert fault is not None
    assert (fault.code, fault.line, fault.expected, fault.found) == ("import.states", 9, "31", "30")
    assert "llama.block_count" in fault.message
