"""A wrong op is found where it is, on graphs traced by hand: layer, line, and whether it computes or is handed the wrong thing."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from conformance.align import align, layers_of
from conformance.compare import Subject
from conformance.golden import Golden, open_golden
from conformance.report import Comparison
from tests.conformance.dense import LINES, MINIS, Change, dense, folder


def subject(mini: str, dtype: str = "bf16", change: Change | None = None, golden: Golden | None = None) -> Subject:
    graph, _, landings, weights = dense(mini, dtype, change)
    return Subject(graph, weights, lambda: landings, golden or open_golden(folder(mini)), {})


def on(line: str, place: int, value: Any, layer: int | None = None) -> Callable[[], Change]:
    """Another argument at one place of the calls of a line, in every layer or in one. A function is called with all arguments."""

    def fresh() -> Change:
        calls = [0]

        def change(called: str, arguments: list[Any]) -> list[Any]:
            if called == line:
                calls[0] += 1
                if layer is None or calls[0] == layer + 1:
                    arguments[place] = value(arguments) if callable(value) else value
            return arguments

        return change

    return fresh


class Case(NamedTuple):
    name: str
    mini: str
    change: Callable[[], Change]
    layer: int | None
    line: str
    handed: bool = False


CASES = [
    Case("a norm with another eps", "llama31-mini", on("attn_norm", 2, 1e-6), 0, "attn_norm"),
    Case("a norm with another eps in one layer", "llama31-mini", on("mlp_norm", 2, 1e-3, layer=1), 1, "mlp_norm"),
    Case("rope with another base", "llama31-mini", on("rope", 4, 10000.0), 0, "rope"),
    Case("rope without its scaling", "llama31-mini", on("rope", 8, None), 0, "rope"),
    Case("rope pairing neighbours in one layer", "mistral-mini", on("rope", 6, "interleaved", layer=1), 1, "rope"),
    Case("keys appended as values", "llama31-mini", on("append", 1, lambda given: given[0]), 0, "append", True),
    Case("values appended as keys", "llama31-mini", on("append", 0, lambda given: given[1]), 0, "append", True),
    Case("another scale of scores", "llama31-mini", on("attend", 5, 0.25), 0, "attend"),
    Case("a window one narrower", "mistral-mini", on("attend", 6, 7), 0, "attend"),
    Case("a residual added to itself", "llama31-mini", on("attn_add", 1, lambda given: given[0]), 0, "attn_add"),
    Case("a residual added to itself in the last layer", "qwen2-mini", on("mlp_add", 1, lambda given: given[0], layer=1), 1, "mlp_add"),
]


@pytest.mark.parametrize("mini", MINIS)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("mode", ["exact", "native"])
def test_a_right_model_agrees_with_the_original_class(mini: str, dtype: str, mode: str) -> None:
    found = subject(mini, dtype).compared(mode)
    assert found.verdict == "agrees", shown(found)
    assert found.worst <= 1.0, f"{found.where} is at {found.worst} of its bound"
    assert found.greedy is not None
    assert found.greedy.agree + len(found.greedy.ties) == found.greedy.tokens == 8


def shown(found: Comparison) -> str:
    return "\n".join(f"{fault.place} {fault.name} line {fault.line.line}: {fault.sentence}, {fault.fraction:.3g}" for fault in found.faults)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_op_is_found_in_its_layer_at_its_line(case: Case) -> None:
    found = subject(case.mini, change=case.change()).compared("exact")
    assert found.verdict == "differs", f"worst {found.worst} at {found.where}"
    first = found.faults[0]
    assert (first.layer, first.line.line, first.handed) == (case.layer, LINES[case.line], case.handed), shown(found)
    assert first.fraction > 1.0
    assert first.got != first.want


def test_a_fault_in_every_layer_is_one_fault_that_names_the_others() -> None:
    found = subject("llama31-mini", change=on("rope", 4, 10000.0)()).compared("exact")
    assert [fault.line.line for fault in found.faults] == [LINES["rope"]], shown(found)
    assert found.faults[0].again == [1]


def test_native_mode_finds_what_is_larger_than_its_rounding_and_names_the_rounding_in_the_bound() -> None:
    found = subject("llama31-mini", change=on("attend", 5, 0.25)()).compared("native")
    assert found.faults[0].line.line == LINES["attend"], shown(found)
    assert found.faults[0].reason in ("rounding the result to bf16", "kv cells stored in bf16")


def test_an_original_without_modules_gives_the_layer_and_its_lines() -> None:
    whole = open_golden(folder("llama31-mini"))
    bare = Golden(
        whole.place, whole.tokens, {name: array for name, array in whole.expected.items() if "." not in name or name[0] in "hg"}, {}
    )
    assert not bare.fine
    found = subject("llama31-mini", change=on("mlp_norm", 2, 0.1, layer=1)(), golden=bare).compared("exact")
    first = found.faults[0]
    # The norm of layer 1 spoils the last hidden state, which the original keeps after the final norm.
    assert first.tensor == "hidden.2", shown(found)
    lines = {line.line for line in (first.line, *first.region)}
    assert {LINES["mlp_norm"], LINES["attend"]} <= lines


def test_nan_in_a_result_is_a_difference_however_wide_the_bound() -> None:
    golden = open_golden(folder("llama31-mini"))
    logits = golden.expected["logits"].copy()
    logits[3, 7] = np.nan
    found = subject("llama31-mini", golden=Golden("", golden.tokens, {**golden.expected, "logits": logits}, {})).compared("exact")
    assert found.verdict == "differs"
    assert found.faults[0].special == 1
    assert found.faults[0].index == [3, 7]


def test_scaling_the_embedding_beside_the_table_is_no_fault_when_what_follows_agrees() -> None:
    """A class may scale inside the module that owns the table; the package then has an op more, and one tensor differs."""
    golden = open_golden(folder("llama31-mini"))
    name = "module.model.embed_tokens.output"
    scaled = Golden("", golden.tokens, {**golden.expected, name: golden.expected[name] * np.float32(0.5)}, {})
    found = subject("llama31-mini", golden=scaled).compared("exact")
    assert found.verdict == "agrees", shown(found)


def test_the_last_hidden_state_of_a_class_that_keeps_it_before_the_norm_is_compared_there() -> None:
    golden = open_golden(folder("llama31-mini"))
    before = Golden("", golden.tokens, {**golden.expected, "hidden.2": golden.expected["module.model.norm.input"]}, {})
    found = subject("llama31-mini", golden=before).compared("exact")
    assert found.verdict == "agrees", shown(found)
    assert next(row for row in found.rows if row.tensor == "hidden.2").fraction < 1.0


def test_columns_that_the_original_does_not_show_keep_their_errors() -> None:
    """Of a joined weight, one half alone was recorded: what follows must not be taken as exact."""
    golden = open_golden(folder("llama31-mini"))
    half = {name: array for name, array in golden.expected.items() if ".up_proj." not in name}
    for mode in ("exact", "native"):
        found = subject("llama31-mini", golden=Golden("", golden.tokens, half, {})).compared(mode)
        assert found.verdict == "agrees", shown(found)


def test_every_module_and_attention_tensor_of_the_minis_has_a_counterpart() -> None:
    for mini in MINIS:
        graph, _, landings, _ = dense(mini)
        golden = open_golden(folder(mini))
        alignment = align(graph, landings, {name: shape for name, shape in golden.shapes.items() if not name.startswith("greedy.")})
        tied = {"module.lm_head.input", "module.lm_head.output"} if mini == "llama-tied-mini" else set()
        assert set(alignment.unaligned) == tied
        layers = layers_of(graph)
        for point in alignment.points:
            if point.consumer is not None and ".layers." in point.name:
                assert layers[point.consumer] == int(point.name.split(".")[3])
