"""A model ready to run, from a `.zt` file or from a package with a checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poem.dataclass import dataclass
from poem.errors import UsageError

if TYPE_CHECKING:
    from poem.dtypes.tensor import Tensor
    from poem.graph import Graph
    from poem.language.declarations import Deployment

UNLIMITED = 1_000_000_000  # model_max_length at and above it means that nobody said


@dataclass(frozen=True, slots=True)
class OpenModel:
    """What it takes to run a deployment. context: how many tokens it was made for, None if nothing says. notes: for stderr."""

    deployment: "Deployment"
    graph: "Graph"
    weights: Mapping[str, "Tensor"]
    side_files: Mapping[str, bytes]
    context: int | None
    notes: tuple[str, ...]


def open_model(model: str, checkpoint: str | None, deployment: str | None) -> OpenModel:
    """Open `FILE.zt`, or a package by path or name together with a checkpoint; of a checkpoint nothing is converted before use.

    Raises PoemError: `run.checkpoint` for a package without a checkpoint or a `.zt` with one, and whatever opening,
    loading and planning refuse.
    """
    if Path(model).suffix == ".zt":
        if checkpoint is not None or deployment is not None:
            hint = "leave out --checkpoint and --deployment"
            raise UsageError("run.checkpoint", f"{model} holds one deployment with its weights", hint=hint)
        from poem.artifact import open_artifact

        artifact = open_artifact(model)
        context = _context(artifact.config, artifact.side_files)
        return OpenModel(artifact.deployment, artifact.graph(), artifact.weights, artifact.side_files, context, artifact.notes)
    if checkpoint is None:
        from poem.language.search_path import default_roots, find_package

        find_package(model, default_roots())
        raise UsageError(
            "run.checkpoint", f"{model} is a package and holds no weights", expected="--checkpoint FOLDER, FILE or ORG/NAME",
            hint=f"import once and run the result: poem import CHECKPOINT --package {model}",
        )  # fmt: skip
    from poem.checkpoint import open_checkpoint
    from poem.importer import plan_import
    from poem.package import load_package

    opened = open_checkpoint(checkpoint)
    plan = plan_import(opened, [load_package(model)], deployment=deployment)
    graph = plan.package.trace(plan.deployment)
    return OpenModel(plan.deployment, graph, plan.weights, opened.side_files, _context(opened.config, opened.side_files), plan.notes)


def _context(config: Mapping[str, Any], side_files: Mapping[str, bytes]) -> int | None:
    """How many tokens the model was made for: `max_position_embeddings`, or else the tokenizer's `model_max_length`."""
    tokenizer_config: Any = {}
    if "tokenizer_config.json" in side_files:
        try:
            tokenizer_config = json.loads(side_files["tokenizer_config.json"])
        except (ValueError, RecursionError):
            tokenizer_config = {}
    sources = (
        (config, "max_position_embeddings"),
        (config.get("text_config"), "max_position_embeddings"),
        (tokenizer_config, "model_max_length"),
    )
    values = (source.get(key) for source, key in sources if isinstance(source, Mapping))
    return next((value for value in values if isinstance(value, int) and 0 < value < UNLIMITED), None)
