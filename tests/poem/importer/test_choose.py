"""Which deployment and which format a checkpoint is, whether its vocabulary fits, and what is said where nothing does."""

from pathlib import Path
from typing import Any

import pytest

from poem.errors import PackageError, PoemError
from poem.formats.declared import State
from poem.importer import ImportPlan, plan_import
from poem.language.declarations import TokenizerContract
from tests.poem.importer.fakes import FakePackage, deployment_of, format_of, package, pairs, weight
from tests.poem.importer.planning import EXTRA, FP8, READ, WEIGHTS, opened, refused, tensors


# -- which format, which deployment --------------------------------------------------------------------
def test_case_59_two_formats_that_recognise_one_checkpoint(tmp_path: Path) -> None:
    made = FakePackage(
        {"toy-bf16-kv-bf16": WEIGHTS},
        [format_of(READ, name=name, recognizes=lambda source: source.has("tok.weight")) for name in ("hub", "old")],
    )
    fault = refused(opened(tmp_path), made)
    assert (fault.code, fault.found) == ("import.ambiguous-format", "hub and old")


def test_no_format_lists_each_with_its_reason(tmp_path: Path) -> None:
    other = format_of(READ, name="gguf", recognizes=lambda source: source.has("blk.0"))
    dry = format_of(pairs(("absent", "embed")), name="dry")
    fault = refused(opened(tmp_path), FakePackage({"toy-bf16-kv-bf16": WEIGHTS}, [other, dry]))
    assert fault.code == "import.no-format"
    assert "gguf: its recognizes says no" in fault.found
    assert "dry: the checkpoint has no `absent`" in fault.found


def test_without_recognizes_states_and_a_dry_run_tell(tmp_path: Path) -> None:
    wrong = format_of(READ, name="wrong", states=[State("config", "hidden", 99)])
    right = format_of(READ, name="right", states=[State("config", "hidden", 8)])
    plan = plan_import(opened(tmp_path, config={"hidden": 8}), [FakePackage({"toy-bf16-kv-bf16": WEIGHTS}, [wrong, right])])
    assert plan.format == "right"


def test_case_60_a_stated_value_that_differs(tmp_path: Path) -> None:
    made = package(WEIGHTS, READ, recognizes=lambda source: True, states=[State("config", "hidden_size", 4096)])
    fault = refused(opened(tmp_path, config={"hidden_size": 5120}), made)
    assert (fault.code, fault.expected, fault.found) == ("import.states", "4096", "5120")
    assert "hidden_size" in fault.message


def test_case_58_a_checkpoint_of_another_family_lists_every_candidate_nearest_first(tmp_path: Path) -> None:
    near = package(WEIGHTS, READ, deployment=deployment_of("near"))
    far = package(WEIGHTS, READ, deployment=deployment_of("far"), recognizes=lambda source: False)
    far.name = "a_first_by_name"
    fault = refused(opened(tmp_path, tensors() | EXTRA), [far, near], any_deployment=True)
    assert fault.code == "import.no-deployment"
    assert fault.found.index("near-bf16-kv-bf16: ") < fault.found.index("far-bf16-kv-bf16: ")
    assert "[import.unread-tensors]" in fault.found
    assert "[import.no-format]" in fault.found


def test_whole_models_come_before_minis_and_more_parts_before_fewer(tmp_path: Path) -> None:
    mini, plain, full = deployment_of("m", mini=True), deployment_of("b"), deployment_of("c", drafter="mtp")
    made = FakePackage({d.name: WEIGHTS for d in (mini, plain, full)}, [format_of(READ)], [mini, plain, full])
    assert plan_import(opened(tmp_path), [made]).deployment is full
    made = FakePackage({d.name: WEIGHTS for d in (mini, plain)}, [format_of(READ)], [mini, plain])
    assert plan_import(opened(tmp_path), [made]).deployment is plain


def test_a_model_id_limits_the_candidates(tmp_path: Path) -> None:
    first, second = deployment_of("first"), deployment_of("second")
    made = FakePackage({d.name: WEIGHTS for d in (first, second)}, [format_of(READ)], [first, second])
    assert plan_import(opened(tmp_path), [made], model="second").deployment is second
    assert refused(opened(tmp_path), made, model="third").code == "import.no-deployment"
    assert plan_import(opened(tmp_path), [made], model="second", deployment=second.name).deployment is second
    fault = refused(opened(tmp_path), made, model="first", deployment=second.name)
    assert (fault.code, fault.found) == ("import.no-deployment", second.name)


def test_a_candidate_that_would_requantise_is_a_miss_that_says_so(tmp_path: Path) -> None:
    u4, b16 = deployment_of("toy", "nvfp4"), deployment_of("toy", "bf16")
    layouts = {d.name: {"w": weight((256, 128), d.weights[0].name)} for d in (u4, b16)}
    made = FakePackage(layouts, [format_of(pairs(("w.weight", "w")))], [u4, b16])
    checkpoint = opened(tmp_path, FP8)
    assert plan_import(checkpoint, [made]).deployment is b16
    alone = FakePackage(layouts, made.formats, [u4])
    fault = refused(checkpoint, alone, any_deployment=True)
    assert "[import.requantise]" in fault.found
    assert "quantised again" in fault.found


def test_a_note_says_when_a_later_deployment_would_keep_what_this_one_decodes(tmp_path: Path) -> None:
    b16, e4 = deployment_of("toy", "bf16"), deployment_of("toy", "e4m3tile128a8")
    layouts = {d.name: {"w": weight((256, 128), d.weights[0].name)} for d in (b16, e4)}
    plan = plan_import(opened(tmp_path, FP8), [FakePackage(layouts, [format_of(pairs(("w.weight", "w")))], [b16, e4])])
    assert plan.deployment is b16
    assert any("toy-e4m3tile128a8-kv-bf16 would keep them" in note for note in plan.notes)


def test_ranks_are_refused(tmp_path: Path) -> None:
    fault = refused(opened(tmp_path), package(WEIGHTS, READ, deployment=deployment_of(tp=2)), any_deployment=True)
    assert "[import.tp]" in fault.found


def test_a_deployment_that_cannot_be_laid_out_is_noted_when_paths_are_compared(tmp_path: Path) -> None:
    class Failing(FakePackage):
        def lay_out(self, deployment: Any) -> Any:
            if deployment.model.id == "broken":
                raise PackageError("layout.refused", "not today")
            return super().lay_out(deployment)

    toy, other, broken = deployment_of(), deployment_of("other"), deployment_of("broken")
    layouts = {toy.name: WEIGHTS, other.name: WEIGHTS | {"vision": weight((2, 2))}}
    read = (*READ, *pairs(("vision.weight", "vision")))
    plan = plan_import(opened(tmp_path), [Failing(layouts, [format_of(read)], [toy, other, broken])], deployment=toy.name)
    assert any("broken-bf16-kv-bf16 was left out" in note and "not today" in note for note in plan.notes)


@pytest.mark.parametrize(
    "config", [{"quant_method": "bitsandbytes"}, {"quant_method": "fp8", "transform_config": {"x": 1}}, {"sparsity_config": {"y": 2}}]
)
def test_a_family_that_no_scheme_reads_is_refused_before_any_candidate(config: dict[str, Any], tmp_path: Path) -> None:
    fault = refused(opened(tmp_path, config={"quantization_config": config}), package(WEIGHTS, READ))
    assert fault.code == "import.illegible"


# -- tokenizer -----------------------------------------------------------------------------------------
def with_vocabulary(tmp_path: Path, vocabulary: dict[str, int], contract: TokenizerContract) -> PoemError | ImportPlan:
    made = package(WEIGHTS, READ, deployment=deployment_of(tokenizer=contract))
    checkpoint = opened(tmp_path, tokenizer={"model": {"vocab": vocabulary}, "added_tokens": []})
    try:
        return plan_import(checkpoint, [made], deployment="toy-bf16-kv-bf16")
    except PoemError as fault:
        return fault


def test_case_71_a_missing_token(tmp_path: Path) -> None:
    fault = with_vocabulary(tmp_path, {"a": 0}, TokenizerContract(markers=(("<|eot_id|>",),)))
    assert isinstance(fault, PoemError)
    assert (fault.code, fault.expected, fault.found) == ("import.tokenizer", "<|eot_id|>", "missing")


def test_case_71_a_pinned_token_elsewhere(tmp_path: Path) -> None:
    fault = with_vocabulary(tmp_path, {"<s>": 7}, TokenizerContract(pinned={"<s>": 1}))
    assert isinstance(fault, PoemError)
    assert (fault.code, fault.found) == ("import.tokenizer", "at 7, wanted 1")
    assert "<s>" not in fault.hint, "the token itself is no near miss of it"


def test_a_vocabulary_that_fits_and_one_that_is_not_there(tmp_path: Path) -> None:
    contract = TokenizerContract(markers=(("<s>",),), pinned={"<s>": 1})
    assert isinstance(with_vocabulary(tmp_path / "a", {"<s>": 1}, contract), ImportPlan)
    plan = plan_import(opened(tmp_path / "b"), [package(WEIGHTS, READ, deployment=deployment_of(tokenizer=contract))])
    assert any("vocabulary was not checked" in note for note in plan.notes)


def test_the_report_is_plain_data(tmp_path: Path) -> None:
    import json

    plan = plan_import(opened(tmp_path), [package(WEIGHTS, READ)])
    report = json.loads(json.dumps(plan.report))
    assert report.keys() == {
        "package",
        "deployment",
        "format",
        "weights",
        "bytes",
        "copied",
        "cast",
        "encoded",
        "decoded",
        "not_read",
        "notes",
    }
    assert report["bytes"] == sum(tensor.nbytes for tensor in plan.weights.values())
