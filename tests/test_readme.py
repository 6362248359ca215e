"""The README shows what the commands really print."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

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
