"""A package without Starlark: layouts and formats as plain data, so that importing is tested by itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from poem.dtypes import Dtype
from poem.formats.declared import Format, Pair, ReadStatement, Recognition, Source, State
from poem.graph import Cut, Param
from poem.language.declarations import Deployment, Layout, Model, Published, Template, TokenizerContract

WHERE = ()


def weight(
    shape: Sequence[int], dtype: str = "bf16", *, cut: Cut | None = None, aliases: Sequence[str] = (), source: str = "checkpoint"
) -> dict[str, Any]:
    """What a layout says about one weight."""
    return {"shape": tuple(shape), "dtype": dtype, "cut": cut, "aliases": tuple(aliases), "source": source}


def layout_of(weights: Mapping[str, Mapping[str, Any]]) -> Layout:
    params = tuple(
        Param(id, name, said["aliases"], said["shape"], said["dtype"], said["cut"], said["source"])
        for id, (name, said) in enumerate(weights.items())
    )
    return Layout(params, tuple(() for _ in params))


def pairs(*written: tuple[Any, str | None]) -> tuple[Pair, ...]:
    """Pairs as a list in a package gives them."""
    return tuple(Pair(tuple(left) if isinstance(left, list) else left, right, WHERE, index) for index, (left, right) in enumerate(written))


def format_of(
    read: Sequence[Pair | ReadStatement],
    *,
    name: str = "hub",
    states: Sequence[State] = (),
    recognizes: Callable[[Source], bool] | None = None,
) -> Callable[[Source], Format]:
    """A format, waiting for the checkpoint that its `recognizes` asks."""

    def bound(source: Source) -> Format:
        asked = None if recognizes is None else lambda: Recognition(recognizes(source))
        return Format(name, WHERE, tuple(states), asked, lambda: tuple(read))

    return bound


def deployment_of(
    id: str = "toy",
    weights: str = "bf16",
    *,
    mini: bool = False,
    tokenizer: TokenizerContract | None = None,
    template: Template | None = None,
    **more: Any,
) -> Deployment:
    model = Model(id, template or Template("raw", stop=("</s>",)), tokenizer or TokenizerContract(), mini=mini)
    return Deployment(model, (Dtype(weights),), Dtype("bf16"), **more)


@dataclass(eq=False)
class FakePackage:
    """What the importer asks of a package. layouts: weights by deployment name."""

    layouts: Mapping[str, Mapping[str, Mapping[str, Any]]]
    formats: Sequence[Callable[[Source], Format]]
    listed: Sequence[Deployment] = field(default_factory=lambda: [deployment_of()])
    name: str = "toy"
    files: Mapping[str, str] = field(default_factory=lambda: {"toy.poem": "# a toy"})

    @property
    def deployments(self) -> dict[str, Deployment]:
        return {deployment.name: deployment for deployment in self.listed}

    def lay_out(self, deployment: Deployment) -> Layout:
        return layout_of(self.layouts[deployment.name])

    def read_formats(self, deployment: Deployment, source: Source) -> list[Format]:
        return [format(source) for format in self.formats]

    def published_for(self, target: str) -> tuple[Published, ...]:
        return ()

    def deployment(self, name: str) -> Deployment:
        return self.deployments[name]


def package(weights: Mapping[str, Mapping[str, Any]], read: Sequence[Pair | ReadStatement], **more: Any) -> FakePackage:
    """A package of one deployment and one format."""
    deployment = more.pop("deployment", deployment_of(weights=more.pop("dtype", "bf16"), mini=more.pop("mini", False)))
    return FakePackage({deployment.name: weights}, [format_of(read, **more)], [deployment])
