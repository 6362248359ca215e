"""A home for packages, and an imported file, for tests of whole imports."""

import shutil
from pathlib import Path

import pytest

from poem.cli.main import main
from tests.poem.checkpoint.files import write_checkpoint
from tests.poem.importer.toy import TOY, VOCABULARY, tensors


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
