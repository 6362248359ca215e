"""The shipped packages and goldens, opened once for all tests of this folder."""

from functools import cache
from pathlib import Path

from conformance.originals.minis import MINIS, Mini
from poem.package import Package, load_package

MODELS = Path(__file__).parents[2] / "models"
PACKAGES = sorted(path.stem for path in MODELS.glob("*.poem"))


@cache
def package(name: str) -> Package:
    return load_package(MODELS / f"{name}.poem")


def golden(mini: Mini) -> Path:
    return MODELS / "goldens" / mini.package / mini.model


DEPLOYMENTS = [(name, deployment) for name in PACKAGES for deployment in package(name).deployments]
GOLDENS = {mini.model: golden(mini) for mini in MINIS.values()}
