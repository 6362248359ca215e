"""Pairs and statements against a layout: which weight reads what, and every way to write them wrong."""

from typing import Any

import pytest

from poem.errors import Frame
from poem.formats.declared import Fill, Pair, ReadStatement, Rows, Slice, Src, Stack
from poem.formats.expand import Expansion, expand
from poem.formats.paths import Paths, fold
from poem.graph import Param

LAYERS = 3
NAMES = ["embed", *(f"layers.{n}.{part}" for n in range(LAYERS) for part in ("q", "k")), "layers.0.moe.experts", "norm"]


def params(names: list[str] = NAMES, aliases: dict[str, tuple[str, ...]] | None = None) -> list[Param]:
    return [Param(id, name, (aliases or {}).get(name, ()), (8, 4), "bf16") for id, name in enumerate(names)]


def pair(left: Any, right: str | None, index: int = 0, line: int = 7) -> Pair:
    return Pair(left, right, (Frame("toy.poem", line, "formats"),), index)


def expanded(*statements: Pair | ReadStatement, own: list[Param] | None = None, elsewhere: list[str] | None = None) -> Expansion:
    return expand(statements, params() if own is None else own, lambda: Paths(NAMES if elsewhere is None else elsewhere))


def one_fault(expansion: Expansion) -> Any:
    assert len(expansion.faults) == 1, [fault.render() for fault in expansion.faults]
    fault = expansion.faults[0]
    assert (fault.file, fault.line) == ("toy.poem", 7)
    return fault


def test_the_integers_of_each_matching_weight_fill_the_left() -> None:
    found = expanded(pair("model.{l}.q", "layers.{l}.q")).landings
    assert {name: (landing.left, landing.values) for name, landing in found.items()} == {
        f"layers.{n}.q": ("model.{l}.q", {"l": n}) for n in range(LAYERS)
    }


def test_a_literal_integer_matches_itself_only() -> None:
    assert list(expanded(pair("first", "layers.0.q")).landings) == ["layers.0.q"]


def test_a_placeholder_is_a_whole_segment_and_an_integer() -> None:
    expansion = expanded(pair("x.{p}", "layers.0.{p}"))
    assert one_fault(expansion).code == "formats.misspelt-path"


def test_case_34_a_misspelt_path_names_the_nearest() -> None:
    fault = one_fault(expanded(pair("model.{l}.q", "layers.{l}.qq")))
    assert fault.code == "formats.misspelt-path"
    assert "did you mean `layers.{l}.q`?" in fault.hint


def test_case_35_a_path_of_another_deployment_is_skipped_and_what_it_would_read_is_known() -> None:
    expansion = expanded(
        pair(("vision.{b}.gate.weight", "vision.{b}.up.weight"), "vision.{b}.gate_up"),
        elsewhere=[*NAMES, "vision.0.gate_up", "vision.1.gate_up"],
    )
    assert not expansion.faults
    assert not expansion.landings
    known = [
        name
        for name in ("vision.12.up.weight", "vision.x.up.weight", "vision.0.down.weight")
        if any(p.fullmatch(name) for p, _ in expansion.not_read)
    ]
    assert known == ["vision.12.up.weight"]


def test_other_deployments_are_laid_out_only_when_a_path_matches_nothing() -> None:
    def never() -> Paths:
        raise AssertionError("asked for other deployments")

    expand([pair("a", "embed")], params(), never)


def test_case_36_a_placeholder_without_counterpart() -> None:
    fault = one_fault(expanded(pair("model.{i}.x", "layers.{l}.q")))
    assert fault.code == "formats.bad-placeholder"
    assert "{i}" in fault.message


@pytest.mark.parametrize(
    "left",
    [
        Src("m.{i}"),
        Slice(Src("m.{l}.{i}"), 0, 0, 1),
        ("m.{l}", "m.{i}"),
        Stack("m.{i}.{e}", "e"),
        Stack(("m.{e}", "n.{i}"), "e"),
        Stack(Src("m.{i}"), "e"),
    ],
)
def test_a_placeholder_without_counterpart_is_found_inside_every_kind_of_left(left: Any) -> None:
    fault = one_fault(expanded(pair(left, "layers.{l}.q")))
    assert fault.code == "formats.bad-placeholder"
    assert "{i}" in fault.message


def test_the_placeholder_that_a_stack_counts_over_needs_no_counterpart() -> None:
    expansion = expanded(pair(Stack("m.{l}.experts.{e}", "e"), "layers.{l}.moe.experts"))
    assert not expansion.faults
    assert list(expansion.landings) == ["layers.0.moe.experts"]


def test_that_placeholder_means_nothing_outside_its_stack() -> None:
    from poem.formats.declared import Concat

    left = Concat(0, (Stack("a.{l}.{e}", "e"), Src("b.{e}")))
    assert one_fault(expanded(pair(left, "layers.{l}.q"))).code == "formats.bad-placeholder"


def test_case_37_many_weights_would_read_one_tensor() -> None:
    fault = one_fault(expanded(pair("model.q", "layers.{l}.q")))
    assert fault.code == "formats.bad-placeholder"
    assert "3 weights would read one tensor" in fault.message


def test_many_weights_may_share_numbers_written_in_the_package() -> None:
    expansion = expanded(pair(Fill(1.0, (8, 4), "bf16"), "layers.{l}.q"))
    assert not expansion.faults
    assert len(expansion.landings) == LAYERS


def test_one_weight_may_read_a_tensor_without_the_placeholder() -> None:
    assert not expanded(pair("bank", "layers.{l}.moe.experts")).faults


def test_case_38_a_weight_read_twice_names_both_pairs() -> None:
    expansion = expanded(pair("a.{l}", "layers.{l}.q", 0, 5), pair("b", "layers.1.q", 1))
    fault = one_fault(expansion)
    assert fault.code == "formats.landed-twice"
    assert "layers.1.q" in fault.message
    assert fault.found == "pair 0 (toy.poem:5) and pair 1 (toy.poem:7)"


def test_an_alias_is_skipped_and_kept_for_comparison() -> None:
    expansion = expanded(pair("tok", "embed"), pair("lm_head", "head", 1), own=params(aliases={"embed": ("head",)}))
    assert not expansion.faults
    assert list(expansion.landings) == ["embed"]
    assert [(copy.left, copy.param.name) for copy in expansion.copies] == [("lm_head", "embed")]


def test_what_is_named_as_not_read_matches_any_run_of_characters() -> None:
    expansion = expanded(pair("model.layers.61.{rest}", None), pair(("a.b", "c"), None))
    known = [
        name
        for name in ("model.layers.61.mlp.up.weight", "model.layers.6.x", "a.b", "aXb", "c", "cc")
        if any(p.fullmatch(name) for p, _ in expansion.not_read)
    ]
    assert known == ["model.layers.61.mlp.up.weight", "a.b", "c"]


def test_statements_land_on_literal_names() -> None:
    where = (Frame("toy.poem", 7, "read"),)
    expansion = expanded(
        ReadStatement("embed", "tok", where),
        ReadStatement("layers.1.k", Rows((("a", "b"), ("c", "d"))), where, "read_stack"),
        pair("m.{l}.q", "layers.{l}.q"),
    )
    assert not expansion.faults
    assert {name: landing.origin for name, landing in expansion.landings.items()} == {
        "embed": "reads.read", "layers.1.k": "reads.read_stack", **{f"layers.{n}.q": "pair 0" for n in range(LAYERS)},
    }  # fmt: skip


def test_a_misspelt_target_of_a_statement_is_found_too() -> None:
    assert one_fault(expanded(ReadStatement("embd", "tok", (Frame("toy.poem", 7, "read"),)))).hint == "did you mean `embed`?"


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["model.layers.0.mlp.bias", "model.layers.1.mlp.bias", "lm_head"], ["model.layers.*.mlp.bias x2", "lm_head"]),
        (["h.0.3.w", "h.1.4.w", "h.1.5.w"], ["h.*.*.w x3"]),
        (["layer1.w", "layer2.w"], ["layer1.w", "layer2.w"]),
        (["blk.7.w"], ["blk.7.w"]),
    ],
)
def test_names_fold_by_their_integers(names: list[str], folded: list[str]) -> None:
    assert fold(names) == folded
