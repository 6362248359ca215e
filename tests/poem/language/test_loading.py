"""Finding and loading: search path, library modules, POEM_HOME, artifacts, names of deployments."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poem.catalogue import load_catalogue
from poem.dtypes import KV_DTYPES, WEIGHT_DTYPES, Dtype
from poem.errors import DeploymentNameError, PackageError
from poem.home import RECORD, copy_shipped
from poem.language.declarations import Deployment, Model, Template, TokenizerContract
from poem.language.limits import LIMITS
from poem.language.names import parse_deployment_name
from poem.package import load_package, load_package_from_texts
from tests.poem.language.package_texts import BLOCKS, FOLDER, LLAMA, TOY, package, swapped, toy

DEPLOYMENT = "toy-tiny-bf16-kv-bf16"


# -- packages and their manifest -------------------------------------------------------------------------------------------
def test_a_package_shows_its_models_and_deployments() -> None:
    loaded = load_package_from_texts("llama_3", {"llama_3.poem": LLAMA, "lib/blocks.poem": BLOCKS})
    assert list(loaded.models) == ["llama31-8b", "llama32-1b", "llama33-70b", "llama31-8b-mini", "llama-test-mini"]
    assert len(loaded.deployments) == 20
    assert list(loaded.deployments)[:4] == [
        "llama31-8b-bf16-kv-bf16",
        "llama31-8b-e4m3tile128a8-kv-e4m3",
        "llama31-8b-nvfp4-kv-e4m3",
        "llama31-8b-u4g64-kv-bf16",
    ]
    model = loaded.models["llama31-8b-mini"]
    assert (model.mini, model.arch, model.layers, model.vocab, model.template.format) == (True, "llama", 2, 128256, "llama")
    assert model.tokenizer.markers[1] == ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
    assert sorted(loaded.files) == ["lib/blocks.poem", "llama_3.poem"]


def test_parts_drafters_and_published_heads_are_kept() -> None:
    model = 'model("toy-tiny", template = template("raw", stop = ["</s>"]), tokenizer = tokenizer(markers = [["</s>"]]),'
    loaded = toy(
        (
            model,
            model[:-1].replace('[["</s>"]]', '[["</s>"]], pinned = {"</s>": 2}, parts = {"vision": [["<img>"]]}')
            + ', parts = ["vision", "selfcond"], drafters = ["mtp"],',
        ),
        (
            "DEPLOYMENTS = [",
            'DEPLOYMENTS = [\n    deployment("toy-tiny", weights = [dtype.u4g64, dtype.bf16], '
            'kv = dtype.e4m3, parts = ["selfcond", "vision"], drafter = "mtp"),',
        ),
        (
            "def layout",
            'PUBLISHED = [published(target = "Org/Trunk", head = "Org/Head", drafter = "mtp", '
            'deployment = "toy-tiny-vision-selfcond-mtp-u4g64-bf16-kv-e4m3")]\n\ndef layout',
        ),
    )
    deployment = loaded.deployments["toy-tiny-vision-selfcond-mtp-u4g64-bf16-kv-e4m3"]
    assert deployment.parts == ("vision", "selfcond")
    assert (deployment.drafter, deployment.kv, deployment.weights) == ("mtp", Dtype("e4m3"), (Dtype("u4g64"), Dtype("bf16")))
    contract = deployment.model.tokenizer
    assert (contract.pinned, contract.groups(["vision"]), contract.groups([])) == ({"</s>": 2}, (("</s>",), ("<img>",)), (("</s>",),))
    assert [item.head for item in loaded.published_for("org--trunk")] == ["Org/Head"]
    assert loaded.published_for("org/other") == ()


def test_names_may_be_defined_in_a_library() -> None:
    library = "KV, HEAD_DIM = 64, 32\n" + TOY[TOY.index("def caches") : TOY.index("def forward")]
    text = 'load("//lib/rows.poem", "caches")\n' + TOY[: TOY.index("def caches")] + TOY[TOY.index("def forward") :]
    assert package("toy", text, {"lib/rows.poem": library}).trace(DEPLOYMENT).digest() == toy().trace(DEPLOYMENT).digest()


def test_aliases_and_names_may_be_mixed_and_a_module_is_evaluated_once(capsys: pytest.CaptureFixture[str]) -> None:
    files = {"lib/a.poem": 'print("a")\none, two = 1, 2\n', "lib/deep/b.poem": 'load("//lib/a.poem", "one")\nthree = one + 2\n'}
    text = 'load("//lib/a.poem", x = "two", "one")\nload("//lib/deep/b.poem", "three")\nfail(repr([one, x, three]))\n'
    with pytest.raises(PackageError, match=r"\[1, 2, 3\]"):
        package("toy", text, files)
    assert capsys.readouterr().err == "lib/a.poem:1: a\n"


def test_an_error_in_a_library_is_told_at_its_own_line_with_who_loaded_it() -> None:
    with pytest.raises(PackageError) as caught:
        package("toy", 'load("//lib/a.poem", "x")\n' + TOY, {"lib/a.poem": 'load("//lib/b.poem", "x")\n', "lib/b.poem": "\nx = 1 // 0\n"})
    error = caught.value
    assert (error.file, error.line, error.code) == ("lib/b.poem", 2, "load.error")
    assert [(frame.file, frame.line) for frame in error.stack] == [("toy.poem", 1), ("lib/a.poem", 1), ("lib/b.poem", 2)]
    assert error.render().count("division by zero") == 1


def test_a_library_may_hold_a_weight_maker_and_an_op() -> None:
    library = "def norm(width, of):\n    return weight([width], of)\n"
    loaded = package(
        "toy",
        'load("//lib/n.poem", "norm")\n'
        + swapped(TOY, ("attn_norm = weight([HIDDEN], compute(w))", "attn_norm = norm(HIDDEN, compute(w))")),
        {"lib/n.poem": library},
    )
    layout = loaded.lay_out(DEPLOYMENT)
    assert [(frame.file, frame.function) for frame in layout.where[1]] == [("toy.poem", "layout"), ("lib/n.poem", "norm")]


def test_what_a_text_carries_is_all_that_it_may_load() -> None:
    with pytest.raises(PackageError) as caught:
        load_package_from_texts("llama_3", {"llama_3.poem": LLAMA})
    assert caught.value.code == "load.missing-module"
    assert "only the texts that the file carries" in caught.value.message


@pytest.mark.parametrize("count", [64, 65])
def test_a_package_loads_at_most_64_files(count: int) -> None:
    files = {f"lib/m{i}.poem": f'load("//lib/m{i + 1}.poem", "x")\n' for i in range(count - 2)}
    files[f"lib/m{count - 2}.poem"] = "x = 1\n"
    files = {name: text.replace('", "x")', '", "x")\n') for name, text in files.items()}
    for i in range(count - 2):
        files[f"lib/m{i}.poem"] = f'load("//lib/m{i + 1}.poem", y = "x")\nx = y\n'
    text = 'load("//lib/m0.poem", "x")\n' + TOY
    if count == 64:
        assert package("toy", text, files)
        return
    with pytest.raises(PackageError) as caught:
        package("toy", text, files)
    assert caught.value.code == "load.too-large"


# -- the search path -------------------------------------------------------------------------------------------------------
def test_a_name_is_found_in_the_first_folder_that_has_it(tmp_path: Path) -> None:
    for folder, hidden in (("one", "64"), ("two", "32")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "toy.poem").write_text(TOY.replace("256, 64, 128", f"256, {hidden}, 128"))
    found = load_package("toy", search=[tmp_path / "one", tmp_path / "two"])
    assert found.path == tmp_path / "one" / "toy.poem"
    assert found.trace(DEPLOYMENT).param("embed").shape == (256, 64)
    catalogue = load_catalogue([tmp_path / "one", tmp_path / "two"])
    assert catalogue.shadowed == [(tmp_path / "one" / "toy.poem", tmp_path / "two" / "toy.poem")]


def test_modules_are_looked_up_beside_the_package_first(tmp_path: Path) -> None:
    for folder in ("own", "shared"):
        (tmp_path / folder / "lib").mkdir(parents=True)
        (tmp_path / folder / "lib" / "blocks.poem").write_text(BLOCKS + f"\n# {folder}\n")
    (tmp_path / "own" / "llama_3.poem").write_text(LLAMA)
    assert "# own" in load_package(tmp_path / "own" / "llama_3.poem", search=[tmp_path / "shared"]).files["lib/blocks.poem"]
    (tmp_path / "own" / "lib" / "blocks.poem").unlink()
    assert "# shared" in load_package(tmp_path / "own" / "llama_3.poem", search=[tmp_path / "shared"]).files["lib/blocks.poem"]


def test_a_module_that_links_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own" / "lib").mkdir(parents=True)
    (tmp_path / "blocks.poem").write_text(BLOCKS)
    (tmp_path / "own" / "lib" / "blocks.poem").symlink_to(tmp_path / "blocks.poem")
    (tmp_path / "own" / "llama_3.poem").write_text(LLAMA)
    with pytest.raises(PackageError) as caught:
        load_package(tmp_path / "own" / "llama_3.poem", search=[])
    assert (caught.value.code, caught.value.file, caught.value.line) == ("load.bad-path", "llama_3.poem", 2)
    assert "is a link out of its folder" in caught.value.message


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("nothing", "load.missing-package"),
        ("lib", "load.missing-package"),
        ("to", "load.missing-package"),
        ("./toi.poem", "load.missing-package"),
        (".", "load.missing-package"),
    ],
)
def test_a_package_that_is_not_there_is_refused(given: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "toy.poem").write_text(TOY)
    (tmp_path / "lib.poem").write_text(TOY)
    with pytest.raises(PackageError) as caught:
        load_package(given, search=[tmp_path])
    assert caught.value.code == code
    if given == "to":
        assert "toy" in caught.value.hint + caught.value.expected


def test_a_file_whose_name_is_no_package_name_is_refused(tmp_path: Path) -> None:
    for name in ("a-b.poem", "1a.poem", "lib.poem"):
        (tmp_path / name).write_text(TOY)
        with pytest.raises(PackageError) as caught:
            load_package(tmp_path / name)
        assert caught.value.code == "load.bad-name"


def test_an_edited_file_is_used_at_once(tmp_path: Path) -> None:
    path = tmp_path / "toy.poem"
    path.write_text(TOY)
    before = load_package(path).trace(DEPLOYMENT).digest()
    path.write_text(TOY.replace("10000.0", "20000.0"))
    assert load_package(path).trace(DEPLOYMENT).digest() != before


def test_two_packages_of_one_model_id_keep_the_first_and_say_so(tmp_path: Path) -> None:
    (tmp_path / "one.poem").write_text(TOY)
    (tmp_path / "two.poem").write_text(TOY)
    catalogue = load_catalogue([tmp_path])
    assert catalogue.owner["toy-tiny"].name == "one"
    assert [(fault.code, fault.file, fault.line) for fault in catalogue.faults] == [("catalog.model-clash", "two.poem", 3)]


def test_a_file_written_on_windows_loads(tmp_path: Path) -> None:
    path = tmp_path / "toy.poem"
    path.write_bytes(TOY.replace("\n", "\r\n").encode())
    assert load_package(path).trace(DEPLOYMENT).digest() == toy().trace(DEPLOYMENT).digest()


# -- POEM_HOME -------------------------------------------------------------------------------------------------------------
def test_shipped_files_are_copied_updated_and_left_alone_when_edited(tmp_path: Path) -> None:
    shipped, home = tmp_path / "shipped", tmp_path / "home" / "models"
    (shipped / "lib").mkdir(parents=True)
    (shipped / "toy.poem").write_text("one")
    (shipped / "lib" / "a.poem").write_text("lib one")
    assert copy_shipped(shipped, home) == []
    assert ((home / "toy.poem").read_text(), (home / "lib" / "a.poem").read_text()) == ("one", "lib one")
    stamp = (home / RECORD).stat().st_mtime_ns
    assert copy_shipped(shipped, home) == []
    assert (home / RECORD).stat().st_mtime_ns == stamp, "nothing changed, nothing is written"
    (home / "toy.poem").write_text("edited by hand")
    (shipped / "toy.poem").write_text("version two")
    (shipped / "lib" / "a.poem").write_text("lib version two")
    warnings = copy_shipped(shipped, home)
    assert [("toy.poem was edited" in warning, "\n" in warning) for warning in warnings] == [(True, False)]
    assert ((home / "toy.poem").read_text(), (home / "lib" / "a.poem").read_text()) == ("edited by hand", "lib version two")
    (home / "lib" / "a.poem").unlink()
    copy_shipped(shipped, home)
    assert (home / "lib" / "a.poem").read_text() == "lib version two"


def test_a_home_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    (shipped / "toy.poem").write_text("one")
    (tmp_path / "file").write_text("no folder")
    (warning,) = copy_shipped(shipped, tmp_path / "file" / "models")
    assert "cannot be written" in warning
    assert "\n" not in warning


def test_a_damaged_record_does_no_harm(tmp_path: Path) -> None:
    shipped, home = tmp_path / "shipped", tmp_path / "home"
    shipped.mkdir()
    (shipped / "toy.poem").write_text("one")
    home.mkdir()
    (home / RECORD).write_text("{not json")
    assert copy_shipped(shipped, home) == []
    (home / RECORD).write_text('{"toy.poem": 3}')
    assert copy_shipped(shipped, home) == []
    assert (home / "toy.poem").read_text() == "one"


# -- names of deployments ----------------------------------------------------------------------------------------------------
WORDS = ["vision", "selfcond", "audio_in", "mtp", "eagle"]
MODELS = {
    id: Model(id, Template("llama"), TokenizerContract(), parts=tuple(WORDS[:3]), drafters=tuple(WORDS[3:]))
    for id in ("a", "a-b", "llama31-8b", "qwen35-4b", "x.y_z-mini")
}


@given(
    st.sampled_from(sorted(MODELS)),
    st.sets(st.sampled_from(WORDS[:3])),
    st.sampled_from([None, *WORDS[3:]]),
    st.lists(st.sampled_from(WEIGHT_DTYPES), min_size=1, max_size=8),
    st.sampled_from(KV_DTYPES),
    st.integers(1, 64),
)
def test_a_deployment_is_what_its_name_says(id: str, parts: set[str], drafter: str | None, weights: list[str], kv: str, tp: int) -> None:
    ordered = tuple(part for part in MODELS[id].parts if part in parts)
    deployment = Deployment(MODELS[id], tuple(map(Dtype, weights)), Dtype(kv), ordered, drafter, tp)
    assert parse_deployment_name(deployment.name, MODELS) == deployment


@given(st.text("ab-kvtp2f1631._", max_size=40))
def test_any_other_text_is_refused_or_means_what_it_says(text: str) -> None:
    try:
        understood, code = parse_deployment_name(text, MODELS).name, ""
    except DeploymentNameError as error:
        understood, code = text, error.code
    assert (understood, code) in [(text, ""), (text, "name.bad"), (text, "name.unknown-model")]


def test_the_examples_of_names_are_understood() -> None:
    deployment = parse_deployment_name("qwen35-4b-vision-mtp-u4g64-bf16-kv-bf16", MODELS)
    assert (deployment.parts, deployment.drafter, [dtype.name for dtype in deployment.weights]) == (("vision",), "mtp", ["u4g64", "bf16"])
    assert parse_deployment_name("llama31-8b-e4m3tile128a8-kv-e4m3-tp2", MODELS).tp == 2


@pytest.mark.parametrize(
    ("name", "id", "weights"),
    [("x-bf16-kv-bf16", "x", ["bf16"]), ("x-bf16-f32-kv-f32", "x-bf16", ["f32"]), ("x-bf16-bf16-kv-bf16", "x-bf16", ["bf16"])],
)
def test_the_longest_id_that_leaves_a_right_rest_is_meant(name: str, id: str, weights: list[str]) -> None:
    models = {id: Model(id, Template("llama"), TokenizerContract()) for id in ("x", "x-bf16")}
    deployment = parse_deployment_name(name, models)
    assert (deployment.model.id, [dtype.name for dtype in deployment.weights]) == (id, weights)
    with pytest.raises(DeploymentNameError) as caught:
        parse_deployment_name("x-bf16-kv-u4g64", models)
    assert "understood up to `x-bf16`" in caught.value.message


def test_a_name_that_no_deployment_lists_may_be_traced() -> None:
    assert toy().trace("toy-tiny-f16-kv-f32").spaces[0].dtype == "f32"


# -- limits ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        "x = " + "(" * 3000 + "1" + ")" * 3000,
        "x = " + "[" * 3000 + "]" * 3000,
        "x = " + "-" * 10000 + "1",
        "x = " + "not " * 10000 + "1",
        "x = 1" + "+1" * 10000,
        "x = y" + ".a" * 10000,
        "def f(y):\n  return y" + "()" * 10000,
        "x = " + "1 if 1 else " * 10000 + "1",
        "x = " + "lambda: " * 3000 + "1",
        "def f(a):\n  if a: pass\n" + "  elif a: pass\n" * 3000,
        "x = " + "[" * 600 + "1" + " for a in [1]]" * 600,
        "".join(" " * i + "if True:\n" for i in range(400)) + " " * 400 + "pass",
        "x = [1" + " for a in [1]" * 30000 + "]",
        "x = (1 +\n" * 2000 + "1" + ")" * 2000,
    ],
    ids=lambda text: text[:14].strip(),
)
def test_a_text_that_nests_without_end_is_refused_before_it_is_parsed(text: str) -> None:
    with pytest.raises(PackageError) as caught:
        package("toy", text)
    assert caught.value.code == "load.too-deep"
    assert caught.value.line >= 1


def test_long_lists_and_many_statements_are_fine() -> None:
    text = "X = [\n" + "    (1, 2 + 3, [4]),\n" * 5000 + "]\n" + "y = 1\n" * 5000 + TOY
    assert package("toy", text)


def test_time_and_memory_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "phase_seconds", 0.2)
    loop = ("    y = ops.gather.embed", "    for i in range(1 << 30):\n        pass\n    y = ops.gather.embed")
    with pytest.raises(PackageError) as caught:
        toy(loop).trace(DEPLOYMENT)
    assert (caught.value.code, caught.value.phase) == ("budget.time", "forward")
    monkeypatch.setattr(LIMITS, "memory_bytes", 50 << 20)
    with pytest.raises(PackageError) as caught:
        toy(("VOCAB, HIDDEN", "X = [[i] * 10 for i in range(1 << 30)]\nVOCAB, HIDDEN"))
    assert caught.value.code == "budget.memory"


def test_nodes_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "nodes", 10)
    with pytest.raises(PackageError) as caught:
        toy().trace(DEPLOYMENT)
    assert caught.value.code == "budget.size"


def test_the_folder_of_examples_is_a_search_path() -> None:
    assert [found.name for found in load_catalogue([FOLDER]).packages] == ["llama_3", "toy"]
