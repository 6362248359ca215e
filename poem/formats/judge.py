"""What can be said of a package's formats without a checkpoint: malformed pairs, misspelt paths, weights that two pairs read."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from poem.errors import PackageError, PoemError
from poem.faults import one_line
from poem.formats.declared import Format, Pair, ReadStatement
from poem.formats.expand import expand
from poem.formats.paths import Paths
from poem.graph import Param

if TYPE_CHECKING:
    from poem.package import Package


class Elsewhere:
    """The paths of all deployments of packages, laid out once and only when a right side matches nothing."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Paths, list[str]]] = {}

    def paths(self, package: "Package", notes: list[str]) -> Paths:
        """Every path of every deployment; a deployment that cannot be laid out adds to the notes."""
        if package.name not in self._found:
            names: dict[str, None] = {}
            failed = []
            for deployment in package.deployments.values():
                try:
                    names |= dict.fromkeys(package.lay_out(deployment).names())
                except PoemError as fault:
                    failed.append(f"{deployment.name} was left out when paths were compared: {one_line(fault)}")
            self._found[package.name] = Paths(names), failed
        paths, failed = self._found[package.name]
        notes += failed
        return paths


class Judge:
    """Judges the formats of a package's deployments. What was found of one layout holds for all with the same names."""

    def __init__(self, package: "Package") -> None:
        self._package, self._elsewhere = package, Elsewhere()
        self._seen: set[tuple[tuple[Pair | ReadStatement, ...], tuple[str, ...]]] = set()

    def faults(self, declared: Callable[[], Sequence[Format]], params: Sequence[Param]) -> list[PoemError]:
        """Everything wrong with the formats that a deployment declares, whose weights are `params`.

        Formats that ask the checkpoint add a note to the package: only an import can judge them.
        """
        found: list[PoemError] = []
        names = tuple(param.name for param in params)
        try:
            for format in declared():
                found += self._faults_of(format.read(), params, names)
        except PackageError as fault:
            if fault.code != "formats.no-checkpoint":
                found.append(fault)
            else:
                self._package.note(f"the formats can only be judged during an import: {fault.place()}: {fault.message}")
        return found

    def _faults_of(self, statements: tuple[Pair | ReadStatement, ...], params: Sequence[Param], names: tuple[str, ...]) -> list[PoemError]:
        if (statements, names) in self._seen:
            return []
        self._seen.add((statements, names))
        notes: list[str] = []
        found = expand(statements, params, lambda: self._elsewhere.paths(self._package, notes)).faults
        for note in notes:
            self._package.note(note)
        return found
