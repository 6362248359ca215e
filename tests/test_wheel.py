"""A wheel holds all that the commands need, and works from any directory."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, as an installer would lay it out."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "import sys, poem; from poem.cli.main import main; print(poem.__file__, file=sys.stderr); sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(installed), "POEM_HOME": str(home)}
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=home, env=environment)


def test_the_shipped_models_are_checked_from_another_directory(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "check", "llama_3")
    assert str(installed) in done.stderr, f"the checkout ran instead of the wheel:\n{done.stderr}"
    assert done.returncode == 0, done.stdout + done.stderr
    assert "llama31-mini" in done.stdout


def test_the_wheel_lists_its_ops_and_models(installed: Path, tmp_path: Path) -> None:
    for command in (["ops"], ["dtypes"], ["models"]):
        done = run(installed, tmp_path, *command)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_holds_the_cuda_sources_and_no_tests(installed: Path) -> None:
    names = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert "poem/shipped/cuda_src/prelude.cuh" in names
    assert "poem/shipped/models/llama_3.poem" in names
    assert not [name for name in names if name.startswith("tests/")]
