"""What a package passes to a builtin: how the prelude packs it, and what becomes of it here."""

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from poem.dtypes import RESERVED, Dtype
from poem.formats.declared import State
from poem.graph import Cut
from poem.language.evaluation import Evaluation, Foreign
from poem.language.frames import user_frames
from poem.language.values import ReservedDtype
from poem.ops.operands import Weight

_AS_JSON = str.maketrans("()", "[]")


def unpacked(evaluation: Evaluation, item: Any, handles: Sequence[Any]) -> Any:
    """Plain data and lists are themselves; a dict has one entry that says what it stands for."""
    if isinstance(item, list):
        return [unpacked(evaluation, part, handles) for part in item]
    if not isinstance(item, dict):
        return item
    ((kind, given),) = item.items()
    if kind == "dict":
        return {key: unpacked(evaluation, value, handles) for key, value in given.items()}
    if kind == "handle":
        return handles[given]
    if kind == "dtype":
        return ReservedDtype(given) if given in RESERVED else Dtype(given)
    if kind == "state":
        of, key, want, or_deeper, stack = given
        return State(of, key, want, or_deeper, user_frames(stack))
    if kind == "infinite":
        return math.inf if "inf" in given else math.nan
    if kind == "lost":  # a weight that layout made and did not return
        key, stack = given
        shape, dtype, cut, registered = facts_of_weight(key)
        return Weight(shape, dtype, "", cut, registered, user_frames(stack))
    tracer = evaluation.tracer
    if tracer is not None and kind == "value":
        return tracer.value(given)
    if tracer is not None and kind == "weight" and isinstance(given, int) and 0 <= given < len(tracer.weights):
        return tracer.weights[given]
    if tracer is not None and kind == "cache":
        return tracer.cache_handle(tracer.caches[given])
    if tracer is not None and kind == "inputs":
        return tracer.handle
    return Foreign(given if kind == "foreign" else kind)  # a handle where there is none of its kind


@lru_cache(maxsize=4096)
def facts_of_weight(key: str) -> tuple[tuple[int, ...], Dtype, Cut | None, bool]:
    """Shape, dtype, cut and registered of a weight, from the text of its `_key`."""
    shape, dtype, cut, registered = json.loads(key.translate(_AS_JSON).replace(",]", "]").replace("None", "null").lower())
    return tuple(shape), Dtype(dtype), Cut(cut[0], *map(tuple, cut[1:])) if cut else None, registered
