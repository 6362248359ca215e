"""`poem trace`, `poem models` and `poem new`, and what watches over the command."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import poem
from poem.cli.main import SUBCOMMANDS, main
from poem.cli.new_ import starter
from poem.cli.watch import watched
from poem.home import shipped_models
from poem.package import load_package, load_package_from_texts
from tests.poem.language.package_texts import FOLDER, TOY, swapped

TOY_FILE = str(FOLDER / "toy.poem")


def test_trace_prints_what_there_is_and_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", TOY_FILE, "--deployment", "toy-tiny-f32-kv-f32"]) == 0
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.split("\n")]
    assert lines[0] == "toy-tiny-f32-kv-f32: 18 nodes, 10 params, package toy"
    for expected in (
        "embed [256, 64] f32 also head",
        "q [128, 64] f32 cut axis 0, heads [4]",
        "gate_up [256, 64] f32 cut axis 0, segments [128, 128]",
        "kv kv, space 0 planes [64, 64], head_dim 32 by head",
        "%0 [tokens, 1] i32 tokens()",
        "%1 [tokens, 64] f32 gather.embed(ids=%0, table=embed, vocab=256) toy.poem:44",
        "- attn.kv_append(k=%7, v=%8, cache=kv) toy.poem:50",
        "logits %20 [readouts, 256] f32",
        "digest " + load_package(TOY_FILE).trace("toy-tiny-f32-kv-f32").digest(),
    ):
        assert expected in lines, f"missing: {expected}"
    assert err == ""


def test_trace_shows_the_layer_of_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(FOLDER / "llama_3.poem"), "--deployment", "llama-test-mini-bf16-kv-bf16"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.split("\n")]
    assert ["layer", "0.1", "lib/blocks.poem:10"] in [line[-3:] for line in lines]


def test_trace_as_json_is_the_graph_with_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", TOY_FILE, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    graph = load_package(TOY_FILE).trace("toy-tiny-bf16-kv-bf16")
    assert sorted(told) == ["digest", "graph", "where"]
    assert told["digest"] == graph.digest()
    assert told["graph"] == json.loads(graph.canonical())
    assert told["where"][0] == [["toy.poem", 44, "forward"]]
    assert len(told["where"]) == len(graph.nodes)


def test_notes_of_a_trace_go_to_standard_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "toy.poem").write_text(swapped(TOY, ("head = embed,", "head = embed,\n        spare = weight([3], w),")))
    assert main(["trace", str(tmp_path / "toy.poem"), "--deployment", "toy-tiny-bf16-kv-bf16"]) == 0
    assert capsys.readouterr().err == "note: toy-tiny-bf16-kv-bf16: weights laid out but never used: spare\n"


@pytest.mark.parametrize("arguments", [["trace", "nothing"], ["trace", TOY_FILE, "--deployment", "toy-tiny-bf16"], ["models", "nothing"]])
def test_what_cannot_run_is_exit_code_2_and_an_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "[" in err.split("\n")[0]
    assert "Traceback" not in err


def test_models_lists_what_is_found_and_reports_what_is_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.poem").write_text(TOY)
    (tmp_path / "models" / "broken.poem").write_text("MODELS = [")
    monkeypatch.setenv("POEM_HOME", str(tmp_path))
    assert main(["models", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    toy = next(package for package in told["packages"] if package["name"] == "toy")
    assert toy["path"] == str(tmp_path / "models" / "toy.poem")
    assert toy["models"] == [{
        "id": "toy-tiny", "arch": "toy", "layers": 1, "vocab": 256, "mini": False, "parts": [], "drafters": [],
        "deployments": ["toy-tiny-bf16-kv-bf16", "toy-tiny-f32-kv-f32"],
    }]  # fmt: skip
    assert "llama_3" in [package["name"] for package in told["packages"]]
    assert [fault["code"] for fault in told["faults"]] == ["load.parse"]
    assert main(["models"]) == 0
    out, err = capsys.readouterr()
    assert "toy-tiny  1 layers, vocabulary 256, 2 deployments" in out
    assert "broken.poem" in err


def test_models_says_when_a_file_overrides_a_shipped_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "llama_3.poem").write_text(TOY)
    monkeypatch.setenv("POEM_HOME", str(tmp_path))
    assert main(["models"]) == 0
    assert f"llama_3  {tmp_path}/models/llama_3.poem  (overrides the shipped one)" in capsys.readouterr().out
    (tmp_path / "models" / "llama_3.poem").write_bytes((shipped_models() / "llama_3.poem").read_bytes())
    assert main(["models"]) == 0
    assert f"llama_3  {tmp_path}/models/llama_3.poem\n" in capsys.readouterr().out, "a plain copy overrides nothing"


@pytest.mark.parametrize("words", [["--help"], ["--help", "check"], ["chekc"]])
def test_every_command_is_listed_whatever_else_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    out, err = capsys.readouterr()
    assert [command for command in SUBCOMMANDS if command not in out + err] == []


def test_the_command_runs_as_a_module() -> None:
    ran = subprocess.run([sys.executable, "-m", "poem", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"poem {poem.__version__}\n"


def test_models_of_one_package_lists_its_deployments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", TOY_FILE]) == 0
    assert [line.strip() for line in capsys.readouterr().out.split("\n")][2:4] == ["toy-tiny-bf16-kv-bf16", "toy-tiny-f32-kv-f32"]


@pytest.mark.parametrize("name", ["my_model", "X", "gpt_2_", "NAME"])
def test_a_new_package_loads_traces_and_needs_no_note(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", name, "--to", str(tmp_path)]) == 0
    path = tmp_path / f"{name}.poem"
    assert capsys.readouterr().out == f"{path}\n"
    package = load_package(path)
    for deployment in package.deployments:
        assert len(package.trace(deployment).nodes) == 32
        assert package.read_formats(deployment, None)[0].read()
    assert package.notes == []
    assert main(["new", name, "--to", str(tmp_path)]) == 2
    assert main(["new", name, "--to", str(tmp_path), "--force"]) == 0


def test_a_new_package_explains_itself() -> None:
    text = starter("mine")
    package = load_package_from_texts("mine", {"mine.poem": text})
    assert list(package.models) == ["mine-mini"]
    assert text.count("# -- ") == 5
    assert max(map(len, text.split("\n"))) <= 120


@pytest.mark.parametrize("name", ["1x", "lib", "a b", "", "a/b"])
def test_a_name_that_is_none_starts_no_package(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", name, "--to", str(tmp_path)]) == 2
    assert "[new.bad-name]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# -- the command as a process ------------------------------------------------------------------------------------------------
def command(arguments: Sequence[str], home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import sys; from poem.cli.main import main; sys.exit(main())", *arguments],
        capture_output=True, text=True, env={**os.environ, "POEM_HOME": str(home)}, cwd=Path(__file__).parents[3], timeout=120,
    )  # fmt: skip


BOMBS = {
    "X = [0] * 1000000000": "budget.memory",
    "X = [0]\nfor i in range(60):\n    X = X + X": "budget.memory",
    "X = list(range(1000000000))": "budget.memory",
    "X = []\nfor i in range(1000000):\n    X = [X]": "budget.depth",
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not limit the address space")
@pytest.mark.parametrize(("statement", "code"), BOMBS.items())
def test_a_package_that_takes_all_memory_is_an_error_and_exit_code_2(statement: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "toy.poem").write_text(swapped(TOY, ("VOCAB, HIDDEN", f"{statement}\nVOCAB, HIDDEN")))
    ran = command(["trace", str(tmp_path / "toy.poem"), "--json"], tmp_path / "home")
    assert ran.returncode == 2, ran.stderr
    assert json.loads(ran.stdout)["error"]["code"] == code
    assert ran.stderr.startswith("toy.poem"), ran.stderr
    assert f"[{code}]" in ran.stderr.split("\n")[0]
    assert not [word for word in ("Traceback", "backtrace", "panicked", "core dumped") if word in ran.stderr], ran.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is watched where nothing forks")
def test_ctrl_c_while_a_command_is_loaded_leaves_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted(argv: Sequence[str]) -> int:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        assert watched(interrupted, []) == 2
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert capfd.readouterr().err == "poem: interrupted\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("words", [["ops"], ["ops", "silu"]], ids=" ".join)
def test_results_that_cannot_be_written_are_an_error(words: list[str], tmp_path: Path) -> None:
    """The longer text fails while it is printed, the shorter when it is flushed at the end."""
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "poem", *words], stdout=full, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
            env={**os.environ, "POEM_HOME": str(tmp_path)},
        )  # fmt: skip
    assert ran.returncode == 2
    assert "No space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_command_copies_the_shipped_models_and_passes_on_the_exit_code(tmp_path: Path) -> None:
    ran = command(["trace", TOY_FILE], tmp_path / "home")
    assert (ran.returncode, ran.stdout.split("\n")[0]) == (0, "toy-tiny-bf16-kv-bf16: 18 nodes, 10 params, package toy"), ran.stderr
    assert (tmp_path / "home" / "models" / "lib" / "blocks.poem").is_file()
    assert command(["trace", "llama_3", "--deployment", "nothing"], tmp_path / "home").returncode == 2
    assert command(["no-such-command"], tmp_path / "home").returncode == 2
    assert command(["--help"], tmp_path / "home").returncode == 0
