"""What a package declares, as plain data: models, deployments, templates, tokenizer contracts, published heads.

Every declaration keeps `where`, the user frames that made it; it takes no part in equality.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field

from poem.dataclass import dataclass
from poem.dtypes import Dtype
from poem.errors import Frame
from poem.graph import Param

Where = tuple[Frame, ...]


@dataclass(frozen=True)
class Template:
    """A chat template: the name of its format and the settings that format reads."""

    format: str
    thinking: bool = False
    preserve_thinking: bool = False
    tools: bool = False
    generation_suffix: str = ""
    stop: tuple[str, ...] = ()
    bos: str | None = None
    eos: str | None = None
    where: Where = field(default=(), compare=False)


@dataclass(frozen=True)
class TokenizerContract:
    """What a vocabulary must hold.

    markers: groups of tokens that must exist. pinned: tokens that must have exactly that id. parts: further
    groups for the parts that a deployment serves.
    """

    markers: tuple[tuple[str, ...], ...] = ()
    pinned: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    where: Where = field(default=(), compare=False)

    def groups(self, parts: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The groups of tokens that a deployment with these parts needs."""
        return self.markers + tuple(group for part in parts for group in self.parts.get(part, ()))


@dataclass(frozen=True)
class Model:
    """A model variant. `mini`: it reads a prefix of the whole model's layers and experts."""

    id: str
    template: Template
    tokenizer: TokenizerContract
    mini: bool = False
    parts: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    arch: str = ""
    layers: int = 0
    vocab: int = 0
    where: Where = field(default=(), compare=False)


@dataclass(frozen=True)
class Deployment:
    """A model with the dtypes of its weights and kv cells, its parts and its drafter."""

    model: Model
    weights: tuple[Dtype, ...]
    kv: Dtype
    parts: tuple[str, ...] = ()
    drafter: str | None = None
    tp: int = 1
    where: Where = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """`{id}[-{part}...][-{drafter}]-{weights...}-kv-{kv}[-tp{n}]`, parts in the model's order."""
        words = [self.model.id, *(part for part in self.model.parts if part in self.parts)]
        if self.drafter is not None:
            words.append(self.drafter)
        words += [*(dtype.name for dtype in self.weights), "kv", self.kv.name]
        if self.tp > 1:
            words.append(f"tp{self.tp}")
        return "-".join(words)


@dataclass(frozen=True)
class Published:
    """A speculative draft head that others publish for a model."""

    target: str
    head: str
    drafter: str
    deployment: str
    where: Where = field(default=(), compare=False)


@dataclass(frozen=True)
class Layout:
    """Every weight of one deployment, in walk order.

    params: as in the Graph. where: for each param, the user frames that made the weight.
    """

    params: tuple[Param, ...]
    where: tuple[Where, ...]

    def names(self) -> dict[str, Param]:
        """The params by name and by alias."""
        return {name: param for param in self.params for name in (param.name, *param.aliases)}
