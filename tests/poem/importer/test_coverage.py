"""Every weight lands once and every tensor is accounted for: missing, left over, transposed, read in part, tied."""

from pathlib import Path

import numpy as np
import pytest

from poem.errors import CheckpointError
from poem.formats.declared import Slice, Src, Stride
from poem.importer import plan_import
from tests.poem.checkpoint.files import bf16
from tests.poem.importer.fakes import package, pairs, weight
from tests.poem.importer.planning import CODES, EXTRA, READ, TILE_SCALES, WEIGHTS, codes, opened, refused, tensors


# -- coverage --------------------------------------------------------------------------------------
def test_case_61_one_tensor_removed(tmp_path: Path) -> None:
    held = tensors()
    del held["layers.1.up.weight"]
    fault = refused(opened(tmp_path, held), package(WEIGHTS, READ))
    assert codes(fault) == ["import.missing-tensor"]
    assert "`layers.1.up.weight`" in fault.message
    assert "layers.1.gate_up" in fault.expected
    assert fault.found == "`layers.*.up.weight` for 0 to 0"


def test_a_misspelt_tensor_suggests_the_nearest(tmp_path: Path) -> None:
    fault = refused(opened(tmp_path), package(WEIGHTS, (*READ[:3], *pairs(("norms.weight", "norm")))))
    missing = next(error for error in fault.errors if error.code == "import.missing-tensor")  # type: ignore[attr-defined]
    assert missing.hint == "did you mean `norm.weight`?"


def test_case_62_an_extra_tensor_in_a_whole_model_is_refused_and_in_a_mini_a_note(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, tensors() | EXTRA)
    fault = refused(checkpoint, package(WEIGHTS, READ))
    assert codes(fault) == ["import.unread-tensors"]
    assert fault.found == "layers.*.q.bias x2"
    plan = plan_import(checkpoint, [package(WEIGHTS, READ, mini=True)])
    assert [str(entry) for entry in plan.not_read] == ["beyond what this mini lays out: layers.*.q.bias x2"]


def test_case_63_a_deleted_pair_is_reported_from_both_sides(tmp_path: Path) -> None:
    fault = refused(opened(tmp_path), package(WEIGHTS, [pair for pair in READ if pair.right != "embed"]))
    assert codes(fault) == ["import.unlanded-weights", "import.unread-tensors"]
    unlanded, unread = fault.errors  # type: ignore[attr-defined]
    assert "embed [16, 8] (same shape: tok.weight)" in unlanded.found
    assert "tok.weight" in unlanded.hint
    assert "embed" in unread.hint


def test_case_64_a_transposed_tensor(tmp_path: Path) -> None:
    made = package({"w": weight((8, 4))}, pairs(("w.weight", "w")))
    fault = refused(opened(tmp_path, {"w.weight": bf16(4, 8)}), made)
    assert (fault.code, fault.expected, fault.found, fault.hint) == ("import.shape", "[8, 4]", "[4, 8]", "transposed?")


def test_derived_tensors_and_companions_are_accounted_for(tmp_path: Path) -> None:
    held = tensors() | {"layers.0.rotary_emb.inv_freq": bf16(4), "h.0.attn.masked_bias": bf16(1), "position_ids": np.arange(3)}
    plan = plan_import(opened(tmp_path, held), [package(WEIGHTS, READ)])
    assert [str(entry) for entry in plan.not_read] == [
        "derived from the configuration: h.0.attn.masked_bias, layers.0.rotary_emb.inv_freq, position_ids"
    ]


def test_what_a_format_names_as_not_read_may_be_quantised(tmp_path: Path) -> None:
    held = tensors() | {"mtp.w.weight": ("F8_E4M3", CODES), "mtp.w.weight_scale_inv": TILE_SCALES}
    plan = plan_import(opened(tmp_path, held), [package(WEIGHTS, (*READ, *pairs(("mtp.{x}.weight", None))))])
    assert plan.not_read[0].names == ("mtp.w.weight", "mtp.w.weight_scale_inv")


def test_a_part_that_selections_leave_unread_is_noted(tmp_path: Path) -> None:
    made = package({"a": weight((4, 8)), "b": weight((2, 8))}, pairs((Slice(Src("w"), 0, 0, 4), "a"), (Stride(Src("w"), 0, 5, 2, 2), "b")))
    plan = plan_import(opened(tmp_path, {"w": bf16(10, 8)}), [made])
    assert [note for note in plan.notes if "`w`" in note] == ["`w`: entries 4, 6, 8 to 9 of axis 0 are not read"]


def test_a_tensor_that_selections_read_together_is_read(tmp_path: Path) -> None:
    made = package({"a": weight((4, 8)), "b": weight((6, 8))}, pairs((Slice(Src("w"), 0, 0, 4), "a"), (Slice(Src("w"), 0, 4, 6), "b")))
    plan = plan_import(opened(tmp_path, {"w": bf16(10, 8)}), [made])
    assert not [note for note in plan.notes if "`w`" in note]


def test_many_faults_of_a_kind_are_cut_at_twenty_with_a_count(tmp_path: Path) -> None:
    weights = {f"w.{i}": weight((2, 2)) for i in range(50)}
    fault = refused(opened(tmp_path, {"x.0": bf16(2, 2)}), package(weights, pairs(("x.{i}", "w.{i}"))))
    assert codes(fault) == ["import.missing-tensor"] * 20
    assert "and 29 more of this kind" in fault.render()


# -- tied weights ------------------------------------------------------------------------------------
TIED = {"embed": weight([16, 8], aliases=["head"])}
TIED_READ = pairs(("tok.weight", "embed"), ("lm_head.weight", "head"))


def test_a_tied_model_reads_the_embedding_and_leaves_an_equal_head(tmp_path: Path) -> None:
    table = bf16(16, 8)
    plan = plan_import(opened(tmp_path, {"tok.weight": table, "lm_head.weight": table.copy()}), [package(TIED, TIED_READ)])
    assert np.array_equal(plan.weights["embed"].planes["data"], table)
    assert [str(entry) for entry in plan.not_read] == ["copies of tied weights: lm_head.weight"]


def test_a_tied_model_does_not_miss_a_head(tmp_path: Path) -> None:
    assert plan_import(opened(tmp_path, {"tok.weight": bf16(16, 8)}), [package(TIED, TIED_READ)]).weights["embed"].shape == (16, 8)


@pytest.mark.parametrize("wanted", ["bf16", "f32"])
def test_case_66_a_head_that_differs_is_refused_while_reading(wanted: str, tmp_path: Path) -> None:
    table, other = bf16(16, 8), bf16(16, 8)
    other[15, 7] = 3
    made = package({"embed": weight([16, 8], wanted, aliases=["head"])}, TIED_READ)
    plan = plan_import(opened(tmp_path, {"tok.weight": table, "lm_head.weight": other}), [made])
    with pytest.raises(CheckpointError) as caught:
        plan.weights["embed"]
    assert caught.value.code == "import.tied-differs"
    assert "`lm_head.weight` differs from `tok.weight`" in caught.value.message


def test_a_head_stored_in_another_dtype_differs(tmp_path: Path) -> None:
    table = bf16(16, 8)
    plan = plan_import(opened(tmp_path, {"tok.weight": table, "lm_head.weight": table.astype(np.float32)}), [package(TIED, TIED_READ)])
    with pytest.raises(CheckpointError) as caught:
        plan.weights["embed"]
    assert (caught.value.code, caught.value.found) == ("import.tied-differs", "[16, 8] f32")
