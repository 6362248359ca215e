"""Wrong packages, each with a number: what is wrong, the code of the refusal, and what its message has to hold.

The cases 34 to 38 and 57 to 73 need a checkpoint or the expansion of pairs; they are with the tests of the importer.
"""

import pytest

from poem.errors import PackageError, PoemError
from poem.package import load_package, load_package_from_texts
from tests.poem.language.package_texts import BLOCKS, LLAMA, TOY
from tests.poem.language.wrong.caches import CACHES
from tests.poem.language.wrong.case import Files, Wrong, toy
from tests.poem.language.wrong.formats import FORMATS
from tests.poem.language.wrong.forward import FORWARD
from tests.poem.language.wrong.layout import LAYOUT
from tests.poem.language.wrong.loading import LOADING
from tests.poem.language.wrong.manifest import MANIFEST

ALL = LOADING + MANIFEST + LAYOUT + FORMATS + CACHES + FORWARD


def judge(files: Files, deployment: str = "") -> None:
    """Do with a package what a check does: load it, trace it, and read its formats."""
    package = load_package_from_texts(next(iter(files)).removesuffix(".poem"), files)
    name = deployment or next(iter(package.deployments))
    package.trace(name)
    for form in package.read_formats(name, None):
        form.read()


@pytest.mark.parametrize("wrong", ALL, ids=str)
def test_a_wrong_package_is_refused_with_its_code_and_its_place(wrong: Wrong) -> None:
    with pytest.raises(PoemError) as caught:
        judge(wrong.files, wrong.deployment)
    error = caught.value
    text = error.render()
    assert isinstance(error, PackageError), text
    assert error.code == wrong.code, text
    assert [part for part in wrong.holds if part not in text] == [], text
    file = wrong.file or next(iter(wrong.files))
    assert error.file == file, text
    lines = wrong.files[file].split("\n")
    assert 1 <= error.line <= len(lines), text
    assert wrong.at in lines[error.line - 1], f"{text}\npoints at: {lines[error.line - 1]}"
    if wrong.column:
        assert error.column, text
    assert "@" not in text.replace(str(wrong.files), "").split("\n")[0].split(": ")[0], text


def test_every_case_of_a_package_text_is_here() -> None:
    here = {wrong.case for wrong in ALL} | {8, 9, 10, 56}  # the tests below
    assert here == set(range(1, 57)) - set(range(34, 39))


def test_8_a_loop_without_end_stops_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from poem.language.limits import LIMITS

    monkeypatch.setattr(LIMITS, "load_seconds", 0.2)
    with pytest.raises(PackageError) as caught:
        judge(toy(("VOCAB, HIDDEN", "for i in range(1000000000):\n    pass\nVOCAB, HIDDEN")))
    assert (caught.value.code, caught.value.file) == ("budget.time", "toy.poem")


def test_9_a_file_of_two_megabytes_is_too_large(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "big.poem"
    path.write_text("# " + "x" * (2 << 20))
    with pytest.raises(PackageError) as caught:
        load_package(path)
    assert caught.value.code == "load.too-large"
    assert f"{(2 << 20) + 2} bytes" in caught.value.render()
    assert "1048576" in caught.value.render()


def test_9_a_file_that_is_not_utf8_says_which_byte(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "bytes.poem"
    path.write_bytes(b"# fine\n# \xff\n")
    with pytest.raises(PackageError) as caught:
        load_package(path)
    assert (caught.value.code, caught.value.line) == ("load.not-utf8", 2)
    assert "byte 9 is 0xff" in caught.value.render()


def test_10_a_broken_package_does_not_hide_the_others(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from poem.catalogue import load_catalogue

    (tmp_path / "one.poem").write_text(TOY)
    (tmp_path / "two.poem").write_text(TOY.replace("toy-tiny", "other-tiny"))
    (tmp_path / "three.poem").write_text("MODELS = [")
    catalogue = load_catalogue([tmp_path])
    assert [package.name for package in catalogue.packages] == ["one", "two"]
    assert [error.file for error in catalogue.faults] == ["three.poem"]
    assert [error.code for error in catalogue.faults] == ["load.parse"]


@pytest.mark.parametrize(
    ("name", "code", "holds"),
    [
        ("llama31-8b-bf16", "name.bad", ("llama31-8b-bf16", "kv is expected after `bf16`")),
        ("llama31-8b-bf16-kv-bf16-tp1", "name.bad", ("tp starts at 2",)),
        ("llama31-8b-bf16-kv-bf16-tp02", "name.bad", ("tp starts at 2",)),
        ("llama31-8b-bf16-kv-bf16-tp2-x", "name.bad", ("`x`",)),
        ("llama31-8b-bf17-kv-bf16", "name.bad", ("`bf17`", "a weight dtype", "f32 f16 bf16 e4m3row")),
        ("llama31-8b-u4g32k-kv-bf16", "name.bad", ("`u4g32k`", "reserved for GGUF's Q4_K and not implemented")),
        ("llama31-8b-bf16-kv-u4g64", "name.bad", ("`u4g64`", "bf16 f16 f32 e4m3 e5m2")),
        ("llama31-8b", "name.bad", ("the end of the name",)),
        ("lama31-8b-bf16-kv-bf16", "name.unknown-model", ("did you mean `llama31-8b`",)),
    ],
)
def test_56_a_name_that_is_none_says_what_was_understood(name: str, code: str, holds: tuple[str, ...]) -> None:
    from poem.errors import DeploymentNameError

    package = load_package_from_texts("llama_3", {"llama_3.poem": LLAMA, "lib/blocks.poem": BLOCKS})
    with pytest.raises(DeploymentNameError) as caught:
        package.deployment(name)
    assert caught.value.code == code
    text = caught.value.render()
    assert [part for part in holds if part not in text] == [], text
