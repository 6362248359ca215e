"""`poem models`: the packages of the search path, their models and deployments."""

import argparse
import json
import sys
from typing import Any

from poem.catalogue import Catalogue, load_catalogue
from poem.home import shipped_models
from poem.package import Package, load_package


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem models`."""
    parser.add_argument("package", metavar="MODEL.poem", nargs="?", help="one package, by path or name, with its deployments")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the list; packages that do not load are reported on standard error. 2 if there is nothing to list."""
    if arguments.package is not None:
        package = load_package(arguments.package)
        catalogue = Catalogue([package], owner=dict.fromkeys(package.models, package))
    else:
        catalogue = load_catalogue()
    if arguments.json:
        print(json.dumps(as_json(catalogue), indent=2))
    else:
        for found in catalogue.packages:
            _print_package(found, catalogue, arguments.package is not None)
    for fault in catalogue.faults:
        print(fault.render(), file=sys.stderr)
    return 0 if catalogue.packages else 2


def as_json(catalogue: Catalogue) -> dict[str, Any]:
    """`packages`: name, path, models (id, arch, layers, vocab, mini, parts, drafters, deployments); `faults`: errors."""
    return {
        "packages": [
            {"name": package.name, "path": str(package.path), "models": _models(package, catalogue)} for package in catalogue.packages
        ],
        "faults": [fault.as_json() for fault in catalogue.faults],
    }


def _models(package: Package, catalogue: Catalogue) -> list[dict[str, Any]]:
    return [
        {
            "id": model.id,
            "arch": model.arch,
            "layers": model.layers,
            "vocab": model.vocab,
            "mini": model.mini,
            "parts": list(model.parts),
            "drafters": list(model.drafters),
            "deployments": [name for name, deployment in package.deployments.items() if deployment.model is model],
        }
        for model in package.models.values()
        if catalogue.owner[model.id] is package
    ]


def _print_package(package: Package, catalogue: Catalogue, deployments: bool) -> None:
    hides = [other for path, other in catalogue.shadowed if path == package.path]
    shipped = [other for other in hides if other.parent == shipped_models()]
    edited = any(other.read_text() != package.files[other.name] for other in shipped)  # else it is the copy that was made at a start
    note = "  (overrides the shipped one)" if edited else ""
    print(f"{package.name}  {package.path}{note}")
    models = _models(package, catalogue)
    width = max((len(model["id"]) for model in models), default=0)
    for model in models:
        count = len(model["deployments"])
        facts = [f"{model['layers']} layers", f"vocabulary {model['vocab']}", f"{count} deployment{'s' if count != 1 else ''}"]
        facts += ["mini"] if model["mini"] else []
        facts += [f"parts {' '.join(model['parts'])}"] if model["parts"] else []
        print(f"  {model['id']:<{width}}  {', '.join(facts)}")
        for name in model["deployments"] if deployments else ():
            print(f"    {name}")
