"""`poem import`, `inspect` and `verify`: what they print, how they refuse, and that an interrupted one leaves nothing."""

import json
import math
import os
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from poem.cli.main import main
from tests.poem.checkpoint.files import bf16, field, gguf_bytes, safetensors_of, write_checkpoint
from tests.poem.importer.toy import TOY, VOCABULARY, tensors

ROOT = Path(__file__).parents[3]


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
