"""Where goldens lie."""

from pathlib import Path

INPUTS, EXPECTED = "inputs.safetensors", "expected.safetensors"


def shipped_golden(package_path: Path, package: str, model: str) -> Path | None:
    """The golden beside a package, `goldens/<package>/<model>`, if there is one."""
    folder = package_path.parent / "goldens" / package / model
    return folder if (folder / EXPECTED).is_file() else None
