"""A .zt file carries its package: a model runs from it alone, and a file that is not what its package lays out is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poem.artifact import Container, open_artifact
from poem.errors import PoemError
from tests.poem.importer.toy import TOY, VOCABULARY, tensors


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


def test_the_container_of_an_import_holds_what_was_planned(imported: Path) -> None:
    assert Container(imported).weights() == sorted(open_artifact(imported).weights)
