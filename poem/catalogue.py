"""The packages of the search path: what loads, what does not, and which model id belongs to whom."""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from poem.dataclass import dataclass
from poem.errors import PackageError, PoemError
from poem.language.search_path import default_roots, list_packages
from poem.package import Package, load_package


@dataclass(slots=True)
class Catalogue:
    """packages: those that loaded, by name. faults: why others did not, or lost a model.

    owner: the package that keeps each model id. shadowed: shipped or later files that an earlier file of the same name hides.
    """

    packages: list[Package] = field(default_factory=list)
    faults: list[PoemError] = field(default_factory=list)
    owner: dict[str, Package] = field(default_factory=dict)
    shadowed: list[tuple[Path, Path]] = field(default_factory=list)


def load_catalogue(search: Sequence[str | Path] | None = None) -> Catalogue:
    """Load every package of the search path. A package that fails is reported and left out; it hides no other."""
    roots = default_roots() if search is None else [Path(root) for root in search]
    catalogue = Catalogue()
    for path in list_packages(roots):
        try:
            package = load_package(path, search=roots)
        except PoemError as fault:
            catalogue.faults.append(fault)
            continue
        catalogue.packages.append(package)
        catalogue.shadowed += [
            (path, root / path.name) for root in roots if (root / path.name).is_file() and not (root / path.name).samefile(path)
        ]
    rank = {root: index for index, root in reversed(list(enumerate(roots)))}
    for package in sorted(catalogue.packages, key=lambda package: (rank[_parent(package)], package.name)):
        for model in package.models.values():
            first = catalogue.owner.setdefault(model.id, package)
            if first is not package:
                where = model.where[-1] if model.where else None
                catalogue.faults.append(PackageError(
                    "catalog.model-clash", f"the model `{model.id}` is declared by {first.path} already", phase="catalogue",
                    file=where.file if where else package.name, line=where.line if where else 0,
                    hint="give one of them another id",
                ))  # fmt: skip
    return catalogue


def _parent(package: Package) -> Path:
    assert package.path is not None
    return package.path.parent
