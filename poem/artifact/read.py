"""From a `.zt` file to a model: views of its weights, and the package that lays them out."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from poem.artifact.container import Container, corrupt
from poem.artifact.write import FORMAT
from poem.dataclass import dataclass
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor
from poem.errors import CheckpointError, PoemError
from poem.graph import API_VERSION, Graph, Param
from poem.language.declarations import Deployment, Layout
from poem.package import load_package, load_package_from_texts

_PACKAGE = "poem.package/"
_FILE = re.compile(r"(lib/)?([A-Za-z0-9_]+/)*[A-Za-z0-9_]+\.poem")


class Weights(Mapping[str, Tensor]):
    """The weights of a file by name: read-only views, nothing is read before it is used."""

    def __init__(self, container: Container, params: Mapping[str, Param]) -> None:
        self._container, self._params = container, params

    def __getitem__(self, name: str) -> Tensor:
        param = self._params[name]
        return self._container.tensor(name, Dtype(param.dtype), param.shape)

    def __contains__(self, name: object) -> bool:
        return name in self._params

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)


class SideFiles(Mapping[str, bytes]):
    """The side files of a file by name (`tokenizer.json`, ...)."""

    def __init__(self, container: Container) -> None:
        self._container = container

    def __getitem__(self, name: str) -> bytes:
        return self._container.side_file(name)

    def __contains__(self, name: object) -> bool:
        return name in self._container.side_files()

    def __iter__(self) -> Iterator[str]:
        return iter(self._container.side_files())

    def __len__(self) -> int:
        return len(self._container.side_files())


@dataclass(frozen=True)
class Artifact:
    """An open model. package: the one in the search path where it lays out the same weights, else the one carried.

    notes: what a user should know, such as an edited package that no longer fits.
    """

    path: str
    attributes: Mapping[str, str]
    package: Any
    deployment: Deployment
    layout: Layout
    weights: Mapping[str, Tensor]
    side_files: Mapping[str, bytes]
    notes: tuple[str, ...] = ()

    @cached_property
    def _graph(self) -> Graph:
        return self.package.trace(self.deployment)

    def graph(self) -> Graph:
        """The graph of the deployment."""
        return self._graph

    def side_file(self, name: str) -> bytes:
        """The bytes of a side file. KeyError for one that is not there."""
        return self.side_files[name]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The `config.json` that came with the checkpoint, or {}."""
        text = self.attributes.get("poem.config/config.json")
        try:
            found = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            raise corrupt(self.path, "the carried config.json is no JSON") from None
        return found if isinstance(found, dict) else {}


def open_artifact(path: str | Path, *, prefer_search_path: bool = True) -> Artifact:
    """Open a `.zt` file; nothing of the weights is read.

    prefer_search_path: use the package of that name that is installed or in POEM_HOME, when it lays out the same weights
    (names, shapes, dtypes); otherwise, and always with False, the text that the file carries.
    Raises CheckpointError: `artifact.api` for a file of another version of Poem, `artifact.corrupt` for every other fault.
    """
    container = Container(path)
    name, deployment_name, files = package_of(container)
    try:
        carried = load_package_from_texts(name, files)
        deployment = carried.deployment(deployment_name)
        layout = carried.lay_out(deployment)
    except PoemError as fault:
        raise corrupt(container.path, f"the package it carries cannot be used: {fault.message}", found=fault.place()) from fault
    _check_weights(container, layout)
    package, notes = _preferred(carried, deployment_name, layout) if prefer_search_path else (carried, ())
    if package is not carried:
        deployment, layout = package.deployment(deployment_name), package.lay_out(package.deployment(deployment_name))
    weights = Weights(container, {param.name: param for param in _in_file(layout)})
    return Artifact(container.path, container.attributes, package, deployment, layout, weights, SideFiles(container), notes)


def package_of(container: Container) -> tuple[str, str, dict[str, str]]:
    """Package name, deployment name and package texts of a file. Raises `artifact.api` or `artifact.corrupt`."""
    attributes, path = container.attributes, container.path
    if attributes.get("poem.format") != FORMAT:
        raise corrupt(path, "this is no Poem model", expected=f"poem.format {FORMAT}", found=str(attributes.get("poem.format")))
    api = attributes.get(f"{_PACKAGE}api")
    if api != str(API_VERSION):
        raise CheckpointError(
            "artifact.api", "the file was made by another version of Poem", phase="artifact", file=path,
            expected=f"version {API_VERSION} of the builtins", found=str(api), hint="import the checkpoint again",
        )  # fmt: skip
    files: dict[str, str] = {}
    for key, value in attributes.items():
        if not key.startswith(_PACKAGE) or key in (f"{_PACKAGE}name", f"{_PACKAGE}api"):
            continue
        kind, _, file = key.removeprefix(_PACKAGE).partition("/")
        if kind != "files" or not _FILE.fullmatch(file):
            raise corrupt(path, "an attribute of the package is not known", found=key[:120])
        files[file] = value
    name, deployment = attributes.get(f"{_PACKAGE}name", ""), attributes.get("poem.deployment", "")
    if f"{name}.poem" not in files or not deployment:
        raise corrupt(path, "the file carries no package, or names no deployment", expected=f"{name}.poem", found=", ".join(sorted(files)))
    return name, deployment, files


def _check_weights(container: Container, layout: Layout) -> None:
    """The objects are exactly the weights of the layout, each as its dtype and shape say."""
    params = {param.name: param for param in _in_file(layout)}
    found = set(container.weights())
    if found != set(params):
        missing, more = sorted(set(params) - found), sorted(found - set(params))
        raise corrupt(
            container.path, "the file holds other weights than its package lays out",
            expected=f"{missing[0]} and others ({len(missing)} missing)" if missing else f"{len(params)} weights",
            found=f"{more[0]} and others ({len(more)} more)" if more else f"{len(found)} weights",
        )  # fmt: skip
    for name, param in params.items():
        container.check(name, Dtype(param.dtype), param.shape)


def _preferred(carried: Any, deployment_name: str, layout: Layout) -> tuple[Any, tuple[str, ...]]:
    """The package of that name in the search path if it lays out the same weights, else the carried one and a warning."""
    try:
        installed = load_package(carried.name)
    except PoemError as fault:
        note = f"the package {carried.name} in the search path cannot be loaded ({fault.message}); the carried text is used"
        return carried, () if fault.code == "load.missing-package" else (note,)
    if installed.files == carried.files:
        return installed, ()
    try:
        other = installed.lay_out(installed.deployment(deployment_name))
        same = {_as_stored(param) for param in _in_file(other)} == {_as_stored(param) for param in _in_file(layout)}
    except PoemError:
        same = False
    if same:
        return installed, ()
    note = f"the package {carried.name} in the search path lays out other weights; the carried text is used: import again to use it"
    return carried, (note,)


def _in_file(layout: Layout) -> list[Param]:
    return [param for param in layout.params if param.source == "checkpoint"]


def _as_stored(param: Param) -> tuple[str, tuple[int, ...], str]:
    return param.name, param.shape, param.dtype
