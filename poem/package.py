"""`Package`: an evaluated `.poem` file, and what its functions say for a deployment."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import starlark

from poem.collection import paused_collection
from poem.errors import PackageError
from poem.faults import raise_all
from poem.graph import Graph
from poem.language import host
from poem.language.declarations import Deployment, Layout, Model, Published
from poem.language.end_of_trace import check_trace, notes_of
from poem.language.evaluation import Evaluation, Phase
from poem.language.limits import LIMITS
from poem.language.loading import Loaded, load
from poem.language.names import parse_deployment_name
from poem.language.search_path import ModulesInTexts, ModulesOnDisk, default_roots, find_package, read_text
from poem.tracer import Tracer

if TYPE_CHECKING:
    from poem.formats.declared import Format, Pair, ReadStatement, Recognition, Source
    from poem.formats.judge import Judge

# What runs a phase: `m` and the formats stay in the module from one driver to the next. A function that is called thousands of times, or
# whose own calls are, is called here and not by the prelude: each of those calls asks for its stack, which costs by the frame.
_DRIVERS = {
    "layout": 'load("@poem", "deployed", "named")\nload("@package", "layout")\nm = named(layout(*deployed()))\n',
    "caches": 'load("@poem", "declare_caches")\nload("@package", "caches")\ndeclare_caches(caches, m)\n',
    "forward": 'load("@poem", "tracing", "traced")\nload("@package", "forward")\ninputs = tracing()\ntraced(inputs, forward(m, inputs))\n',
    "formats": (
        'load("@poem", "declare_formats", "read_format", "recognize")\nload("@package", "formats")\n'
        "declared = declare_formats(formats, m)\n"
    ),
}


class Package:
    """One package. `files` are its texts by name (`llama_3.poem`, `lib/blocks.poem`); `path` is where it was found.

    `notes` collects what is worth knowing but stops nothing: unused weights, unread cache rows, ...
    """

    def __init__(self, loaded: Loaded, path: Path | None = None) -> None:
        self._loaded = loaded
        self.path = path
        self.notes: list[str] = []
        self._layouts: dict[str, Layout] = {}  # by deployment name
        self._judge: Judge | None = None
        self._laid_out: _Trace | None = None  # what was checked last: an import often follows

    def __repr__(self) -> str:
        return f"Package({self.name!r}, {len(self.models)} models, {len(self.deployments)} deployments)"

    @property
    def name(self) -> str:
        return self._loaded.name

    @property
    def files(self) -> dict[str, str]:
        return self._loaded.files

    @property
    def models(self) -> dict[str, Model]:
        """The models by id, in declaration order."""
        return self._loaded.models

    @property
    def deployments(self) -> dict[str, Deployment]:
        """The listed deployments by name, in declaration order."""
        return self._loaded.deployments

    @property
    def published(self) -> tuple[Published, ...]:
        return self._loaded.published

    def published_for(self, target: str) -> tuple[Published, ...]:
        """The heads published for a repository; case does not matter, and `--` reads as `/`."""
        wanted = target.replace("--", "/").lower()
        return tuple(item for item in self.published if item.target.replace("--", "/").lower() == wanted)

    def deployment(self, name: str) -> Deployment:
        """The deployment that a name spells, listed or not. Raises DeploymentNameError."""
        return self.deployments.get(name) or parse_deployment_name(name, self.models)

    def lay_out(self, deployment: Deployment | str) -> Layout:
        """The weights of a deployment with their names. Raises PackageError (`layout.*`)."""
        deployment = self._resolve(deployment)
        if deployment.name not in self._layouts:
            _Trace(self, deployment)
        return self._layouts[deployment.name]

    def trace(self, deployment: Deployment | str) -> Graph:
        """The graph of a deployment. Raises PackageError."""
        with paused_collection():
            return self._traced(deployment).tracer.graph()

    def check(self, deployment: Deployment | str) -> Graph:
        """As `trace`; the formats are judged too, as far as that needs no checkpoint. Raises PackageError, PoemErrors for several."""
        from poem.formats.judge import Judge

        with paused_collection():
            trace = self._traced(deployment)
            graph = trace.tracer.graph()
            self._judge = self._judge or Judge(self)
            formats = _Formats(self, trace.deployment, None, trace)
            raise_all(self._judge.faults(formats.declared, graph.params))
            self._laid_out = formats.trace
            return graph

    def _traced(self, deployment: Deployment | str) -> "_Trace":
        trace = _Trace(self, self._resolve(deployment))
        trace.run("caches")
        check_trace(trace.run("forward"), trace.tracer)
        for note in notes_of(trace.tracer):
            self.note(f"{trace.deployment.name}: {note}")
        return trace

    def read_formats(self, deployment: Deployment | str, source: "Source | None") -> "list[Format]":
        """What `formats(m)` declares for a deployment, to be asked against `source`; None where no checkpoint is open.

        Raises PackageError (`formats.*`); without a source also `formats.no-checkpoint`.
        """
        deployment = self._resolve(deployment)
        laid_out, self._laid_out = self._laid_out, None
        return _Formats(self, deployment, source, laid_out if laid_out and laid_out.deployment == deployment else None).declared()

    def note(self, text: str) -> None:
        """Keep a diagnostic, once."""
        if text not in self.notes:
            self.notes.append(text)

    def _resolve(self, deployment: Deployment | str) -> Deployment:
        return self.deployment(deployment) if isinstance(deployment, str) else deployment


class _Trace:
    """One evaluation of layout, and what runs on its result."""

    def __init__(self, package: Package, deployment: Deployment) -> None:
        self.package, self.deployment = package, deployment
        self.source: Source | None = None  # what its formats are asked against
        self.tracer = Tracer(package.name, deployment.model.id, deployment.name, LIMITS.nodes)
        self.module = starlark.Module()
        package._layouts[deployment.name] = self.run("layout").delivered["layout"]

    def run(self, phase: Phase, driver: str = "", **delivered: Any) -> Evaluation:
        """Run the driver of a phase, or the text given. The module is of no use after a failure."""
        evaluation = Evaluation(phase, self.package.files, self.deployment)
        evaluation.tracer, evaluation.source = self.tracer, self.source
        evaluation.delivered.update(delivered)
        ast = host.parse(f"@{phase}", driver or _DRIVERS[phase])
        host.run(evaluation, self.module, ast, self.package._loaded.modules, LIMITS.phase_seconds)
        return evaluation


class _Formats:
    """The formats of a deployment, kept on the Starlark side until they are asked. laid_out: a trace whose `m` serves."""

    def __init__(self, package: Package, deployment: Deployment, source: "Source | None", laid_out: _Trace | None = None) -> None:
        self.package, self.deployment, self.source = package, deployment, source
        self._laid_out = laid_out
        self.trace: _Trace | None = None  # where they are, unless an evaluation failed: its module must not be used again
        self._formats: list[Any] = []

    def _evaluated(self) -> _Trace:
        if self.trace is None:
            trace, self._laid_out = self._laid_out or _Trace(self.package, self.deployment), None
            trace.source = self.source
            self._formats = trace.run("formats").delivered["formats"]
            self.trace = trace
        return self.trace

    def declared(self) -> "list[Format]":
        self._evaluated()
        return [self._format(index) for index in range(len(self._formats))]

    def _format(self, index: int) -> "Format":
        from poem.formats.declared import Format

        of = self._formats[index]
        return Format(of.name, of.where, of.states, self._recognizes(index) if of.recognizes else None, lambda: self._read(index))

    def _ask(self, driver: str, index: int) -> Evaluation:
        trace = self._evaluated()
        self.trace = None
        evaluation = trace.run("formats", driver, reading=self._formats[index])
        self.trace = trace
        return evaluation

    def _recognizes(self, index: int) -> "Callable[[], Recognition]":
        from poem.formats.declared import Recognition

        def recognizes() -> Recognition:
            try:
                answer = self._ask(f"recognize(declared, {index})\n", index).delivered["answer"]
            except PackageError as error:
                if error.code == "formats.no-checkpoint":
                    raise
                return Recognition(False, error.render())
            if not isinstance(answer, bool):
                return Recognition(False, "recognizes answered neither True nor False")
            return Recognition(answer)

        return recognizes

    def _read(self, index: int) -> "tuple[Pair | ReadStatement, ...]":
        return tuple(self._ask(f"read_format(declared, {index})\n", index).delivered.get("statements", ()))


def load_package(path_or_name: str | Path, *, search: Sequence[str | Path] | None = None) -> Package:
    """Load a package by path (`models/llama_3.poem`) or by name (`llama_3`).

    Args:
        search: folders to look in, instead of $POEM_HOME/models and the shipped models.

    Raises PackageError for every fault of its text.
    """
    roots = default_roots() if search is None else [Path(root) for root in search]
    path = find_package(path_or_name, roots)
    return Package(load(path.stem, read_text(path, path.name), ModulesOnDisk([path.parent, *roots])), path)


def load_package_from_texts(name: str, files: Mapping[str, str]) -> Package:
    """Load a package from its texts, as an artifact carries them: `//lib/` modules are looked up only there.

    Raises PackageError.
    """
    file = f"{name}.poem"
    if file not in files:
        raise PackageError("load.missing-package", f"the texts hold no {file}", phase="load", file=file, found=" ".join(files))
    return Package(load(name, files[file], ModulesInTexts(files)))
