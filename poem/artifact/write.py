"""From a plan to a `.zt` file: weights stream one at a time, and the file appears whole or not at all."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from poem.artifact.container import SIDE_FILE, Object, Progress, object_of, publish, side_file_object
from poem.checkpoint.open import CONFIGS
from poem.errors import CheckpointError
from poem.graph import API_VERSION
from poem.importer import ImportPlan
from poem.importer.landing import Prepared

FORMAT = "1"
EVICT_BYTES = 64 << 20  # pages of the checkpoint are given back after so much has been written


def write_artifact(path: str | Path, plan: ImportPlan, progress: Progress | None = None) -> int:
    """Write the model of a plan; returns the size of the file.

    The file holds every weight under its name, the package's text, the configuration and the side files needed at run
    time. Checks that need the data (tied copies, scales, overflow, domains) run while it is written. The same plan gives
    the same bytes. progress: called with bytes done, bytes in all and the weight's name.
    Raises CheckpointError; then nothing is left at the destination.
    """
    objects: dict[str, Callable[[], Object]] = {name: _maker(plan, landing) for name, landing in plan.landings.items()}
    for name in plan.checkpoint.side_files:
        if name not in CONFIGS:  # read before the first byte is written: one may be too large, or have no faithful form
            objects[SIDE_FILE + name] = partial(side_file_object, plan.checkpoint.side_files[name])
    return publish(path, objects, attributes(plan), total=plan.nbytes, progress=progress)


def attributes(plan: ImportPlan) -> dict[str, str]:
    """The attributes of the file: format, deployment, package text, source and configuration."""
    found = {
        "poem.format": FORMAT,
        "poem.deployment": plan.deployment.name,
        "poem.package/name": plan.package.name,
        "poem.package/api": str(API_VERSION),
        "poem.source/format": plan.format,
        **{f"poem.source/{key}": value for key, value in plan.checkpoint.source.items()},
        **{f"poem.package/files/{name}": text for name, text in plan.package.files.items()},
    }
    for name in CONFIGS:
        if name in plan.checkpoint.side_files:
            try:
                found[f"poem.config/{name}"] = plan.checkpoint.side_files[name].decode("utf-8")
            except UnicodeDecodeError:
                raise CheckpointError("import.corrupt", f"{name} is not UTF-8", phase="import", file=plan.checkpoint.place) from None
    return found


def _maker(plan: ImportPlan, landing: Prepared) -> Callable[[], Object]:
    def make() -> Object:
        dtype, shape = landing.dtype, landing.param.shape
        if dtype.is_leaf:
            return object_of(dtype, shape, dtype.planes(shape), _strips(plan, landing))
        tensor = landing.whole()
        plan.checkpoint.evict()
        segments = {path: plane.size for path, plane in tensor.planes.items() if path.rpartition(".")[2] == "rows"}
        planes = sorted(dtype.planes(shape, segments))
        return object_of(dtype, shape, planes, (tensor.planes[plane.path] for plane in planes))

    return make


def _strips(plan: ImportPlan, landing: Prepared) -> Iterator[np.ndarray]:
    """The rows of a float weight, a strip at a time; pages of the checkpoint are given back on the way."""
    landing.check_copies()
    held = 0
    for start, stop in landing.strips():
        rows = landing.rows(start, stop).planes["data"]
        yield rows
        held += rows.nbytes
        if held > EVICT_BYTES or stop == landing.param.shape[0]:
            plan.checkpoint.evict()
            held = 0
