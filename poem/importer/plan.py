"""What an import does to each weight, checked before anything is written: `ImportPlan`, and the plan for one format."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from poem.checkpoint import Checkpoint, Stored
from poem.checkpoint.families.common import ACTIVATION_SCALES
from poem.dataclass import dataclass
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor
from poem.errors import PoemError
from poem.faults import raise_all
from poem.formats.declared import Format
from poem.formats.evaluate import Evaluation, Missing
from poem.formats.expand import Expansion, Landing, expand, names_in
from poem.formats.lazy import Lazy, Refusal, Use
from poem.formats.paths import Paths, fill, pattern, placeholders
from poem.importer import coverage
from poem.importer.coverage import NotRead
from poem.importer.landing import Prepared, keeping_codes, placed, prepare
from poem.language.declarations import Deployment, Layout


class Weights(Mapping[str, Tensor]):
    """The weights of a plan by name, each made when it is asked for."""

    def __init__(self, landings: Mapping[str, Prepared]) -> None:
        self._landings = landings

    def __getitem__(self, name: str) -> Tensor:
        return self._landings[name].whole()

    def __contains__(self, name: object) -> bool:
        return name in self._landings

    def __iter__(self) -> Iterator[str]:
        return iter(self._landings)

    def __len__(self) -> int:
        return len(self._landings)


@dataclass(frozen=True)
class ImportPlan:
    """A checkpoint as one deployment of one package: every weight with its source, checked and not read.

    landings: by weight name, in layout order. not_read: what is left out of the checkpoint, and why. notes: what a
    user should know.
    """

    checkpoint: Checkpoint
    package: Any
    deployment: Deployment
    layout: Layout
    format: str
    landings: Mapping[str, Prepared]
    not_read: tuple[NotRead, ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """Every weight under its name, made on access; views of the checkpoint where its bytes can be used as they are."""
        return Weights(self.landings)

    def stored(self) -> list[Stored]:
        """Every stored weight of the checkpoint that is read, once."""
        arrays = [array for landing in self.landings.values() for array in (landing.stored, *landing.copies)]
        names = dict.fromkeys(use.name for array in arrays for use in array.uses)
        return [stored for name in names if (stored := self.checkpoint.find(name)) is not None]

    @property
    def actions(self) -> dict[str, int]:
        """How many weights are copied, cast, encoded and decoded."""
        counted = Counter(landing.action for landing in self.landings.values())
        return {action: counted[action] for action in ("copied", "cast", "encoded", "decoded")}

    @property
    def nbytes(self) -> int:
        """Bytes of all weights as they will be stored."""
        return sum(plane.nbytes for landing in self.landings.values() for plane in landing.dtype.planes(landing.param.shape))

    @property
    def report(self) -> dict[str, Any]:
        """The outcome as plain data."""
        return {
            "package": self.package.name,
            "deployment": self.deployment.name,
            "format": self.format,
            "weights": len(self.landings),
            "bytes": self.nbytes,
            **self.actions,
            "not_read": [{"reason": entry.reason, "tensors": list(entry.names)} for entry in self.not_read],
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class Formatted:
    """What one format makes of the checkpoint."""

    landings: dict[str, Prepared]
    not_read: list[NotRead]
    notes: list[str]


def plan_format(
    checkpoint: Checkpoint, layout: Layout, format: Format, elsewhere: Callable[[], Paths], *, mini: bool, requantise: bool
) -> Formatted:
    """Every landing with its sources, shapes and conversion, and coverage both ways.

    elsewhere: the paths of all deployments of the package. mini: tensors beyond the layout are left unread without complaint.
    Raises PackageError (`formats.*`), CheckpointError (`import.*`), or PoemErrors for several.
    """
    params = [param for param in layout.params if param.source == "checkpoint"]
    expansion = expand(format.read(), params, elsewhere)
    raise_all(expansion.faults)
    faults: list[PoemError] = []
    missing: list[tuple[str, Landing]] = []
    landed: dict[str, Prepared] = {}
    uses: dict[str, tuple[Use, ...]] = {}
    for name, landing in expansion.landings.items():
        rounded: list[str] = []
        array = _evaluate(checkpoint, landing, faults, missing, rounded)
        if array is None:
            continue
        uses[name] = array.uses
        try:
            landed[name] = prepare(landing.param, array, landing.where, requantise=requantise, rounded=rounded)
        except Refusal as refusal:
            faults.append(placed(refusal, landing.param, landing.where))
    copies = _tied_copies(checkpoint, expansion, landed)
    failed = [landing for name, landing in expansion.landings.items() if name not in uses]
    named = {fill(text, landing.values) for landing in failed for text in names_in(landing.left)}  # they account for what they name
    expansion.not_read += [(pattern(text, r"\d+"), "") for text in named if placeholders(text)]
    read = coverage.tensors_of(checkpoint, named | {use.name for found in uses.values() for use in found})
    not_read, unread = coverage.accounted(checkpoint, read, expansion, coverage.tensors_of(checkpoint, copies))
    faults += coverage.missing_tensors(checkpoint, missing)
    unlanded = [param for param in params if param.name not in expansion.landings]
    if unlanded:
        faults.append(coverage.unlanded(checkpoint, unlanded, unread))
    notes = coverage.partly_read(checkpoint, (use for found in uses.values() for use in found))
    dropped = sum(name.endswith(ACTIVATION_SCALES) for name in read)
    if dropped:
        notes.append(f"{dropped} static scales of activations are dropped: activations are left alone, or quantised as they come")
    if unread and not mini:
        faults.append(coverage.unread_tensors(checkpoint, unread, unlanded))
    elif unread:
        not_read.append(NotRead("beyond what this mini lays out", tuple(unread)))
    raise_all(faults)
    ordered = {param.name: landed[param.name] for param in params}
    return Formatted(ordered, not_read, notes)


def _evaluate(
    checkpoint: Checkpoint, landing: Landing, faults: list[PoemError], missing: list[tuple[str, Landing]], rounded: list[str]
) -> Lazy | None:
    try:
        array = Evaluation(checkpoint, landing.param, keeping_codes(Dtype(landing.param.dtype), rounded)).landing(landing)
        if rounded:  # the parts of one weight are kept together, or decoded together
            array = Evaluation(checkpoint, landing.param, lambda part: part).landing(landing)
        return array
    except Missing as absent:
        missing.append((absent.name, landing))
    except Refusal as refusal:
        faults.append(placed(refusal, landing.param, landing.where))
    return None


def _tied_copies(checkpoint: Checkpoint, expansion: Expansion, landed: dict[str, Prepared]) -> set[str]:
    """Attach to each tied weight what the pairs of its aliases would read; returns the names of those stored weights."""
    names: set[str] = set()
    for landing in expansion.copies:
        array = _evaluate(checkpoint, landing, [], [], [])
        own = landed.get(landing.param.name)
        if array is None or own is None:
            continue
        copied = {use.name for use in array.uses} - {use.name for use in own.stored.uses}
        if copied:
            landed[landing.param.name] = replace(own, copies=(*own.copies, array))
        names |= copied
    return names
