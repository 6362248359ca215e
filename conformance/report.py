"""What a check found, as plain data: what the text, JSON and HTML reports are rendered from."""

import math
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, Literal

from poem.dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np

Verdict = Literal["agrees", "differs", "traced"]
SCHEMA = 1


@dataclass(slots=True)
class Line:
    """A line of a `.poem` file. callers: the frames that lead to it, outermost first."""

    file: str
    line: int
    text: str
    callers: list[str]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "(no line)"


@dataclass(slots=True)
class Fault:
    """One op that is not the original's.

    layer: counted over all folds, None outside. handed: it is handed the wrong value, which is the tensor `instead` of the
    original; else its result is wrong, and `instead` names the tensor that mends it, or "". tensor: of the original, compared
    with. index [row, column], got, want, ulps, bound: at the worst element; fraction: of the bound. reason: what most of the
    bound comes from. region: other lines that may be at fault, when nothing in between was recorded. again: layers in which the
    same line differs. heat: fractions of the bound, rows by columns, for the picture.
    """

    op: str
    layer: int | None
    line: Line
    handed: bool
    instead: str
    tensor: str
    index: list[int]
    got: float
    want: float
    ulps: int
    bound: float
    reason: str
    fraction: float
    special: int
    region: list[Line]
    again: list[int] = field(default_factory=list)
    heat: "np.ndarray | None" = None
    whose: str = "the original"

    @property
    def name(self) -> str:
        """The op as packages write it, or what stands for several."""
        return self.op if " " in self.op else f"ops.{self.op}"

    @property
    def place(self) -> str:
        return "outside the layers" if self.layer is None else f"layer {self.layer}"

    @property
    def sentence(self) -> str:
        """What is wrong, without a subject."""
        if self.handed and self.instead:
            return f"is handed the original's {self.instead} where the original hands over {self.tensor}"
        if self.handed:
            return f"is handed a value that is not the original's {self.tensor}"
        if self.instead:
            return f"gives a result that should be {self.instead}: with that, {self.tensor} is right"
        return f"gives a result that is not {self.whose}'s {self.tensor}"


@dataclass(slots=True)
class Row:
    """How far one tensor of the whole run is from the original's.

    max_ulp: in places of the row's scale (see `metrics.scaled_ulps`). fraction: of its bound. bound: the largest element's.
    """

    tensor: str
    layer: int | None
    max_ulp: float
    nmse: float
    cosine: float
    fraction: float
    bound: float
    index: list[int]

    @property
    def label(self) -> str:
        if self.tensor == "hidden.0":
            return "embedding"
        return f"layer {self.layer}" if self.layer is not None else self.tensor


@dataclass(slots=True)
class Op:
    """One comparison of a forced run: how much of its bound an op on the original's operands uses."""

    op: str
    layer: int | None
    tensor: str
    file: str
    line: int
    fraction: float


@dataclass(slots=True)
class Greedy:
    """The continuation: how many tokens agree of how many; ties and differences as [position, got, want]."""

    tokens: int
    agree: int
    ties: list[list[int]]
    differ: list[list[int]]


@dataclass(slots=True)
class Cost:
    """What quantising costs: the NMSE of the logits, and for how many of `rows` tokens the likeliest next one is the same, both
    against the model with nothing quantised."""

    nmse: float
    agree: int
    rows: int


@dataclass(slots=True)
class Comparison:
    """One deployment in one mode against one original.

    worst: the largest fraction of a bound anywhere; where: its tensor. reason: what that bound comes from.
    """

    deployment: str
    model: str
    mode: str
    golden: str
    verdict: Verdict
    worst: float
    where: str
    reason: str
    seconds: float
    faults: list[Fault] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    greedy: Greedy | None = None
    cost: Cost | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Trace:
    """One deployment, traced."""

    deployment: str
    model: str
    nodes: int
    weights: int


@dataclass(slots=True)
class Report:
    """Everything one command found."""

    package: str
    file: str
    traces: list[Trace]
    comparisons: list[Comparison]
    notes: list[str]
    seed: int
    command: list[str]
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        if any(comparison.verdict == "differs" for comparison in self.comparisons):
            return "differs"
        return "agrees" if self.comparisons else "traced"

    @property
    def exit_code(self) -> int:
        return 1 if self.verdict == "differs" else 0

    def as_json(self) -> dict[str, Any]:
        """Plain data for `--json`; NaN and infinity as text, pictures left out."""
        found = asdict(self)
        return {"schema": SCHEMA, "verdict": self.verdict, "exit_code": self.exit_code, **_plain(found)}


def _plain(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items() if key != "heat"}
    if isinstance(item, (list, tuple)):
        return [_plain(value) for value in item]
    if hasattr(item, "item"):  # a number of NumPy's
        item = item.item()
    return str(item) if isinstance(item, float) and not math.isfinite(item) else item
