"""`poem-check` as a command: exit codes, JSON, the page, goldens that users make, and what is refused how."""

import contextlib
import importlib.util
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from conformance.bounds import BOUNDS
from poem.cli.main import main
from poem.package import load_package
from tests.conformance.dense import folder
from tests.conformance.test_report import SCHEMA, conforms

MODELS = Path(__file__).parents[2] / "models"
LLAMA = str(MODELS / "llama_3.poem")
MINI = "llama31-mini"
DOWN = 'down_proj.weight", "layers.{l}.down"'  # the pair of one weight
original = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None, reason="needs the extra `oracles`"
)


def run(*words: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of `poem check ...`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(["check", *words])
        except SystemExit as stopped:  # argparse
            code = int(stopped.code or 0)
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def planted(tmp_path: Path) -> str:
    """Llama with a wrong eps, beside the same goldens."""
    models = tmp_path / "models"
    shutil.copytree(MODELS, models, ignore=shutil.ignore_patterns("goldens"))
    (models / "goldens").symlink_to(MODELS / "goldens")
    file = models / "llama_3.poem"
    file.write_text(file.read_text().replace("rmsnorm(y, w.mlp_norm, m.eps)", "rmsnorm(y, w.mlp_norm, 0.01)"))
    return str(file)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A copy of a golden that a test may spoil."""
    return Path(shutil.copytree(folder(MINI), tmp_path / "golden"))


# -- exit codes -----------------------------------------------------------------------------------
def test_a_shipped_package_agrees_and_exits_with_0() -> None:
    code, out, _ = run(LLAMA, "--model", MINI)
    assert code == 0
    assert out.rstrip().splitlines()[-1].startswith("llama_3 agrees: 10 of 10 comparisons")


def test_a_difference_exits_with_1_and_says_first_where(planted: str) -> None:
    code, out, _ = run(planted, "--model", MINI, "--mode", "exact")
    assert code == 1
    lines = out.splitlines()
    assert lines[2] == "First divergence: layer 0, ops.elemwise.rmsnorm"
    assert "x = ops.elemwise.rmsnorm(y, w.mlp_norm, 0.01)" in lines[3]
    assert any(line.startswith(f"To rerun: poem-check {planted}") for line in lines)


def test_the_command_to_rerun_finds_the_same_line(planted: str) -> None:
    _, out, _ = run(planted, "--model", MINI)
    words = next(line for line in out.splitlines() if line.startswith("To rerun: ")).split()[3:]
    code, again, _ = run(*words)
    assert code == 1
    assert again.splitlines()[2:6] == out.splitlines()[2:6]


@pytest.mark.parametrize(("words", "code"), [
    (["no_such_package"], "load."),
    ([LLAMA, "--model", "llama99"], "check.model"),
    ([LLAMA, "--deployment", "llama31-8b-bf16"], "name.bad"),
    ([LLAMA, "--golden", "no/such/folder"], "check.golden"),
    ([LLAMA, "--checkpoint", "no/such/checkpoint"], "import.not-found"),
    ([LLAMA, "--against", "transformers"], "check.usage"),
    ([LLAMA, "--checkpoint", str(folder(MINI)), "--save-golden", "x"], "check.usage"),
])  # fmt: skip
def test_what_cannot_run_exits_with_2_and_a_code_and_no_traceback(words: list[str], code: str) -> None:
    found, out, err = run(*words)
    assert found == 2
    assert f"[{code}" in err
    assert "Traceback" not in err + out


def test_the_report_does_not_tell_how_many_processes_made_it(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every deployment has a note, and the minis differ: all of it comes in the same order, whoever found it."""
    file = Path(planted)
    line = "    y = inputs.fold_layers(m.layers, y, block)\n"
    assert line in file.read_text()
    file.write_text(file.read_text().replace(line, "    ops.elemwise.rmsnorm(y, m.final_norm, m.eps)\n" + line))

    def told(cores: int) -> dict[str, Any]:
        monkeypatch.setattr("os.cpu_count", lambda: cores)
        code, out, _ = run(planted, "--mode", "exact", "--json")
        assert code == 1
        data = json.loads(out)
        return {
            "notes": data["notes"], "traces": [trace["deployment"] for trace in data["traces"]],
            "comparisons": [(item["deployment"], item["mode"], item["verdict"], item["worst"]) for item in data["comparisons"]],
        }  # fmt: skip

    alone = told(1)
    deployments = list(load_package(planted).deployments)
    assert alone["traces"] == deployments
    assert [
        name for name in deployments if any(note.startswith(f"{name}: results that nobody reads") for note in alone["notes"])
    ] == deployments
    for cores in (2, 5):
        assert told(cores) == alone, f"{cores} cores"


def test_a_wrong_option_exits_with_2() -> None:
    assert run(LLAMA, "--mode", "approximate")[0] == 2
    assert run()[0] == 2


def test_an_error_is_json_too() -> None:
    code, out, _ = run(LLAMA, "--model", "llama99", "--json")
    assert code == 2
    assert json.loads(out)["error"]["code"] == "check.model"


# -- JSON and the page ----------------------------------------------------------------------------
def test_json_of_a_real_check_has_the_schema(planted: str) -> None:
    for package, code in ((LLAMA, 0), (planted, 1)):
        found, out, _ = run(package, "--model", MINI, "--json")
        data = json.loads(out)
        conforms(data, SCHEMA)
        assert (found, data["exit_code"]) == (code, code)


def test_the_page_is_written_where_asked_and_shows_the_fault(planted: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    code, _, _ = run(planted, "--model", MINI, "--mode", "exact", "--html", str(page))
    text = page.read_text()
    assert code == 1
    assert "x = ops.elemwise.rmsnorm(y, w.mlp_norm, 0.01)" in text
    assert "data:image/png;base64," in text


def test_a_page_that_cannot_be_written_is_an_error_and_not_a_traceback(tmp_path: Path) -> None:
    code, _, err = run(LLAMA, "--model", MINI, "--mode", "exact", "--html", str(tmp_path / "no" / "folder.html"))
    assert code == 2
    assert "[check.html]" in err


# -- options --------------------------------------------------------------------------------------
def test_mode_and_only_narrow_the_check() -> None:
    _, out, _ = run(LLAMA, "--model", MINI, "--mode", "native", "--only", "attention.1", "--json")
    comparisons = json.loads(out)["comparisons"]
    assert {comparison["mode"] for comparison in comparisons} == {"native"}
    assert {op["tensor"] for comparison in comparisons for op in comparison["ops"]} == {
        "attention.1.query", "attention.1.key", "attention.1.value", "attention.1.output",
    }  # fmt: skip


def test_only_leaves_faults_elsewhere_alone(planted: str) -> None:
    assert run(planted, "--model", MINI, "--mode", "exact", "--only", "attention.0")[0] == 0


@pytest.mark.parametrize("pattern", ["attention.9", "no such tensor", "logits?"])
def test_a_pattern_that_no_tensor_has_agrees_with_nothing(pattern: str) -> None:
    code, out, err = run(LLAMA, "--deployment", f"{MINI}-bf16-kv-bf16", "--only", pattern)
    assert (code, out) == (2, "")
    assert "[check.only]" in err
    assert f"`{pattern}`" in err


def test_a_comparison_in_which_the_pattern_finds_nothing_is_left_out_and_named() -> None:
    """The golden of a quantised deployment has no op of its own in exact mode."""
    _, out, _ = run(LLAMA, "--model", MINI, "--only", "attention.1", "--json")
    data = json.loads(out)
    assert ("llama31-mini-nvfp4-kv-e4m3", "exact") not in {(found["deployment"], found["mode"]) for found in data["comparisons"]}
    assert any("llama31-mini-nvfp4-kv-e4m3 (exact)" in note for note in data["notes"])


# -- formats --------------------------------------------------------------------------------------
def formats_changed(folder: Path, old: str, new: str) -> str:
    """A copy of the shipped packages without goldens, in which one text of llama_3.poem differs."""
    shutil.copytree(MODELS, folder / "models", ignore=shutil.ignore_patterns("goldens"))
    file = folder / "models" / "llama_3.poem"
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    return str(file)


@pytest.mark.parametrize(("old", "new", "code", "says"), [
    (DOWN, DOWN.replace("l}.down", "l}.dwon"), "formats.misspelt-path", "did you mean `layers.{l}.down`?"),
    ('L + "mlp.down_proj.weight"', '"model.layers.0.mlp.down_proj.weight"', "formats.bad-placeholder", "32 weights would read one tensor"),
    (DOWN, DOWN.replace("l}.down", "l}.o"), "formats.landed-twice", "the weight `layers.0.o` is read twice"),
    ("def formats(m):", "def formats(m):\n    return []\n\ndef never(m):", "formats.not-a-list", "at least one format"),
])  # fmt: skip
def test_formats_are_judged_without_a_checkpoint(tmp_path: Path, old: str, new: str, code: str, says: str) -> None:
    found, out, err = run(formats_changed(tmp_path, old, new))
    assert (found, out) == (2, "")
    assert f"[{code}]" in err
    assert says in err


def test_formats_that_ask_the_checkpoint_are_left_to_an_import(tmp_path: Path) -> None:
    package = formats_changed(tmp_path, "def formats(m):", 'def formats(m):\n    has("x")')
    code, out, _ = run(package, "--model", "llama3-8b")
    assert code == 0
    assert out.count("can only be judged during an import") == 1
    assert "llama_3.poem:" in out


def test_a_package_without_goldens_is_traced_and_says_how_to_make_one(tmp_path: Path) -> None:
    shutil.copytree(MODELS, tmp_path / "models", ignore=shutil.ignore_patterns("goldens"))
    code, out, _ = run(str(tmp_path / "models" / "llama_3.poem"))
    assert code == 0
    assert "--against transformers" in out
    assert "--save-golden" in out
    assert out.rstrip().splitlines()[-1].startswith("llama_3 traced")


def test_every_deployment_is_traced_once_in_listed_order() -> None:
    _, out, _ = run(LLAMA, "--json")
    data = json.loads(out)
    assert [trace["deployment"] for trace in data["traces"]] == list(load_package(LLAMA).deployments)
    assert all(trace["nodes"] > 0 for trace in data["traces"])


def test_a_fault_in_a_deployment_without_golden_is_met_as_well(tmp_path: Path) -> None:
    """It is traced in another process; the error has to come back."""
    shutil.copytree(MODELS, tmp_path / "models", ignore=shutil.ignore_patterns("goldens"))
    file = tmp_path / "models" / "llama_3.poem"
    file.write_text(
        file.read_text().replace("def layout(id, deploy):", 'def layout(id, deploy):\n    if id == "llama32-3b":\n        fail("no")')
    )
    code, _, err = run(str(file))
    assert code == 2
    assert "Traceback" not in err
    assert "no" in err


# -- goldens --------------------------------------------------------------------------------------
def test_a_golden_that_a_user_names_is_compared(golden: Path) -> None:
    code, out, _ = run(LLAMA, "--golden", str(golden), "--json")
    data = json.loads(out)
    assert code == 0
    assert {comparison["golden"] for comparison in data["comparisons"]} == {str(golden)}


def test_weights_come_from_the_checkpoint_and_the_rest_from_the_golden(golden: Path, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(folder(MINI), tmp_path / "checkpoint"))
    (golden / "model.safetensors").unlink()
    assert run(LLAMA, "--golden", str(golden), "--checkpoint", str(checkpoint), "--mode", "exact")[0] == 0


def test_a_golden_without_weights_asks_for_a_checkpoint(golden: Path) -> None:
    (golden / "model.safetensors").unlink()
    code, _, err = run(LLAMA, "--golden", str(golden))
    assert code == 2
    assert "the golden holds no weights" in err
    assert "--checkpoint DIR" in err


@pytest.mark.parametrize(("stated", "code"), [("256", 0), (None, 0), (10**400, 2)])
def test_a_random_prompt_is_drawn_from_the_vocabulary_of_the_package(tmp_path: Path, stated: object, code: int) -> None:
    """Whatever a configuration says of it, and that of a GGUF says nothing; a number that is not the package's is refused as a state."""
    checkpoint = Path(shutil.copytree(folder(MINI), tmp_path / "checkpoint"))
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "vocab_size": stated}))
    assert run(LLAMA, "--model", MINI, "--checkpoint", str(checkpoint), "--mode", "native")[0] == code


def test_a_golden_of_logits_and_hidden_states_alone_finds_the_layer(golden: Path, planted: str) -> None:
    expected = load_file(golden / "expected.safetensors")
    save_file({name: array for name, array in expected.items() if name.startswith(("logits", "hidden"))}, golden / "expected.safetensors")
    code, out, _ = run(planted, "--golden", str(golden), "--mode", "exact")
    assert code == 1
    assert "First divergence: layer 0, this layer" in out
    assert "x = ops.elemwise.rmsnorm(y, w.mlp_norm, 0.01)" in out
    assert "--against transformers" in out


def with_logits(expected: dict[str, np.ndarray], change: Any) -> dict[str, np.ndarray]:
    return {**expected, **{name: change(expected[name]) for name in ("logits", "greedy.logits")}}


def without(name: str) -> Any:
    return lambda expected: {key: array for key, array in expected.items() if key != name}


@pytest.mark.parametrize(("spoil", "says"), [
    (without("logits"), "holds no logits"),
    (without("greedy.logits"), "go together"),
    (lambda expected: {**expected, "hidden.0": expected["hidden.0"][:3].copy()}, "hidden.0 does not fit the prompt"),
    (lambda expected: {**expected, "greedy.ids": expected["greedy.ids"][::-1].copy()}, "does not continue the prompt"),
    (lambda expected: {**expected, "logits": expected["logits"][0].copy()}, "logits does not fit the prompt"),
    (lambda expected: {**expected, "greedy.ids": expected["greedy.ids"].astype(np.float32)}, "does not continue the prompt"),
    (lambda expected: {**expected, "greedy.ids": np.append(expected["greedy.ids"][:-1], 256)}, "holds what no logits choose"),
    (lambda expected: {**expected, "greedy.logits": expected["greedy.logits"][:, :9].copy()}, "greedy.logits does not fit logits"),
    (lambda expected: {**expected, "greedy.logits": expected["greedy.logits"][0].copy()}, "greedy.ids does not continue the prompt"),
    (lambda expected: with_logits(expected, lambda logits: logits[:, :230].copy()), "does not give logits as wide"),
    (lambda expected: with_logits(expected, lambda logits: np.concatenate([logits, logits], 1)), "does not give logits as wide"),
])  # fmt: skip
def test_a_golden_whose_parts_do_not_fit_is_refused(golden: Path, spoil: Any, says: str) -> None:
    file = golden / "expected.safetensors"
    save_file(spoil(load_file(file)), file)
    code, _, err = run(LLAMA, "--golden", str(golden))
    assert code == 2
    assert "[check.golden]" in err
    assert says in err


@pytest.mark.parametrize(("ids", "says"), [
    (np.zeros((1, 0), np.int64), "the prompt is empty"),
    (np.ones((2, 12), np.int64), "no prompt"),
    (np.ones((1, 24), np.float32), "no prompt"),
])  # fmt: skip
def test_a_golden_without_a_prompt_is_refused(golden: Path, ids: np.ndarray, says: str) -> None:
    save_file({"input_ids": ids}, golden / "inputs.safetensors")
    code, _, err = run(LLAMA, "--golden", str(golden))
    assert code == 2
    assert says in err


def test_what_of_a_golden_cannot_be_compared_is_named(golden: Path) -> None:
    file = golden / "expected.safetensors"
    expected = load_file(file)
    save_file({**expected, "hidden.1": np.concatenate([expected["hidden.1"]] * 2, 1)}, file)
    code, out, _ = run(LLAMA, "--golden", str(golden), "--mode", "exact")
    assert code == 0
    assert "1 tensor of the original has no counterpart here: hidden.1" in out


def test_a_changed_original_is_a_difference(golden: Path) -> None:
    """One logit moved by a thousandth: more than f32 explains, less than anyone sees."""
    file = golden / "expected.safetensors"
    expected = load_file(file)
    expected["logits"][5, 9] += 1e-3
    save_file(expected, file)
    code, out, _ = run(LLAMA, "--golden", str(golden), "--mode", "exact")
    assert code == 1
    assert "at [5, 9]" in out


# -- checkpoints and originals --------------------------------------------------------------------
def test_without_an_original_native_mode_is_compared_with_exact_mode(tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(folder(MINI), tmp_path / "checkpoint"))
    code, out, _ = run(LLAMA, "--checkpoint", str(checkpoint))
    assert code == 0
    assert "native mode was compared with exact mode" in out


@pytest.mark.original
@original
def test_the_original_class_itself_is_compared_and_kept_as_a_golden(tmp_path: Path, planted: str) -> None:
    checkpoint = Path(
        shutil.copytree(folder(MINI), tmp_path / "checkpoint", ignore=shutil.ignore_patterns("expected*", "inputs*", "meta*"))
    )
    saved = tmp_path / "saved"
    words = ["--checkpoint", str(checkpoint), "--against", "transformers"]
    code, out, _ = run(LLAMA, *words, "--save-golden", str(saved), "--json")
    data = json.loads(out)
    assert code == 0
    assert data["comparisons"][0]["golden"].startswith("transformers.LlamaForCausalLM")
    assert sorted(path.name for path in saved.iterdir()) == [
        "config.json", "expected.safetensors", "inputs.safetensors", "meta.json", "model.safetensors",
    ]  # fmt: skip
    assert run(LLAMA, "--golden", str(saved), "--mode", "exact")[0] == 0
    assert run(planted, "--golden", str(saved), "--mode", "exact")[0] == 1
    assert run(planted, *words, "--mode", "exact")[0] == 1


@pytest.mark.original
@original
def test_an_original_that_cannot_be_run_is_refused_with_what_its_libraries_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("expected m1 and m2 to have the same dtype\nin a later line")

    monkeypatch.setattr("conformance.originals.record_original", fail)
    code, out, error = run(LLAMA, "--checkpoint", str(folder(MINI)), "--against", "transformers")
    assert (code, out) == (2, "")
    assert "transformers cannot run the original: RuntimeError: expected m1 and m2 to have the same dtype [check.original]" in error
    assert "Traceback" not in error


@pytest.mark.original
@original
def test_weights_that_an_import_changes_are_refused_before_the_original_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.originals.record_original", lambda *arguments, **options: pytest.fail("it was run"))
    words = ["--deployment", "llama31-mini-u4g64-kv-bf16", "--checkpoint", str(folder(MINI)), "--against", "transformers"]
    code, _, error = run(LLAMA, *words)
    assert code == 2
    assert "layers.0.q is encoded on import [check.inexact]" in error


# -- the rest -------------------------------------------------------------------------------------
def test_every_op_of_a_shipped_model_has_a_bound() -> None:
    missing: dict[str, str] = {}
    for file in sorted(MODELS.glob("*.poem")):
        package = load_package(file)
        for model in package.models:
            deployment = next(deployment for deployment in package.deployments.values() if deployment.model.id == model)
            missing |= {node.op: f"{file.name}, {model}" for node in package.trace(deployment).nodes if node.op not in BOUNDS}
    assert not missing, missing


def test_the_fast_path_loads_nothing_heavy() -> None:
    program = (
        "import sys; from poem.cli.main import main; main(['check', 'models/llama_3.poem', '--model', 'llama31-mini']); "
        "print([name for name in ('torch', 'transformers', 'rich', 'jinja2', 'tokenizers', 'gguf', 'huggingface_hub', 'safetensors') "
        "if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=MODELS.parent, check=True)
    assert done.stderr.strip() == "[]"
