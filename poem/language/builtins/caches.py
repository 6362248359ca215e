"""Builtins of the caches phase: the methods of `c`."""

import re
from typing import Annotated, Any, NamedTuple

import starlark

from poem.dtypes import FLOATS, KV_DTYPES
from poem.errors import Frame, PackageError
from poem.graph import Cache
from poem.language.binding import Unfit, Wants
from poem.language.builtins.record import Builtin, asked, builtin, entry
from poem.language.evaluation import Call, Evaluation
from poem.language.values import Count, Flag, Integer, OfDtype, Size, Sizes, Text, listed
from poem.ops.operands import Weight
from poem.tracer import Tracer

CACHE_NAME = re.compile(r"[A-Za-z0-9_.]+")
MAXIMUM_PLANES = 4


def _weight(given: Any) -> Weight:
    if not isinstance(given, Weight):
        raise Unfit
    return given


Weights = Annotated[tuple[Weight, ...], listed("a list of weights", _weight)]
Planes = Annotated[tuple[Any, ...], Wants("a list of widths", lambda given: _planes(given))]


def _planes(given: Any) -> tuple[Any, ...]:
    if not isinstance(given, (list, tuple)):
        raise Unfit
    return tuple(given)


def _tracer(call: Call) -> Tracer:
    tracer = call.evaluation.tracer
    assert tracer is not None
    return tracer


@builtin("caches", name="caches.kv_space", shown="c.kv_space")
def kv_space(call: Call, dtype: OfDtype, window: Size | None = None) -> int:
    """Paged per-token memory of one dtype; returns its id."""
    if dtype.name not in KV_DTYPES:
        raise call.error("caches.bad-dtype", f"c.kv_space(): {dtype} is no kv dtype", expected=" ".join(KV_DTYPES), found=dtype.name)
    return _tracer(call).add_space(dtype.name, window)


def _kv(
    call: Call, space: Integer, name: Text, planes: Planes, head_dim: Size, heads: Flag = False, scales: Weights | None = None
) -> Cache:
    tracer = _tracer(call)
    if not 0 <= space < len(tracer.spaces):
        only = {0: "no space is declared", 1: "only 0 is declared"}.get(len(tracer.spaces), f"0 to {len(tracer.spaces) - 1} are declared")
        raise call.error("caches.unknown-space", f"c.kv(): there is no space {space}; {only}", expected=only, found=str(space))
    _check_name(call, name)
    _check_planes(call, planes, head_dim, heads)
    cache = tracer.add_kv(space, name, planes, head_dim, heads, _scales(call, tracer, space, len(planes), scales))
    _remember(call.evaluation, cache, call.where)
    return cache


_KV = Builtin("caches.kv", "c.kv", _kv, ("caches",))


class KvPlan(NamedTuple):
    """A declared row that further rows may be like, and where."""

    cache: Cache
    where: tuple[Frame, ...]


@asked
def kv(evaluation: Evaluation, stack: str, args: list[Any], kwargs: dict[str, Any]) -> starlark.OpaquePythonObject:
    """Declare a row of a kv space."""
    call = Call(evaluation, "c.kv", stack)
    return starlark.OpaquePythonObject(KvPlan(_KV.call(call, args, kwargs), call.where))


@entry
def kv_again(evaluation: Evaluation, plan: KvPlan, name: str) -> int:
    """Declare a row like an earlier one; 0 when its name needs judging."""
    known = evaluation.delivered["cache where"]
    if name in known or not CACHE_NAME.fullmatch(name):
        return 0
    tracer = evaluation.tracer
    assert tracer is not None
    like = plan.cache
    _remember(evaluation, tracer.add_kv(like.space, name, like.planes, like.head_dim, like.heads, like.scales), plan.where)
    return 1


@builtin("caches", name="caches.state", shown="c.state")
def state(call: Call, name: Text, slab: Sizes, dtype: OfDtype, split: Count | None = None) -> None:
    """One fixed-size block per sequence."""
    _check_name(call, name)
    if dtype.name not in FLOATS:
        raise call.error("caches.bad-dtype", f"c.state(): a state of {dtype}", expected=" ".join(FLOATS), found=dtype.name)
    if split is not None and split >= len(slab):
        message = f"c.state(): split names axis {split} of a slab of {len(slab)} axes"
        raise call.error("caches.bad-split", message, expected=f"0 to {len(slab) - 1}", found=str(split))
    _remember(call.evaluation, _tracer(call).add_state(name, slab, dtype.name, split), call.where)


def _remember(evaluation: Evaluation, cache: Cache, where: tuple[Frame, ...]) -> None:
    evaluation.delivered.setdefault("cache where", {})[cache.name] = where


def _check_name(call: Call, name: str) -> None:
    if not CACHE_NAME.fullmatch(name):
        raise call.error("caches.bad-name", f"{name!r} is no name of a cache", expected="letters, digits, `_` and `.`", found=repr(name))
    known = call.evaluation.delivered.setdefault("cache where", {})
    if name in known:
        first = known[name]
        raise call.error(
            "caches.duplicate", f"a cache named `{name}` is declared already", expected="distinct names of rows and states",
            found=f"the first at {first[-1].file}:{first[-1].line}" if first else "",
        )  # fmt: skip


def _check_planes(call: Call, planes: tuple[Any, ...], head_dim: int, heads: bool) -> None:
    def bad(message: str, found: Any) -> PackageError:
        expected = f"1 to {MAXIMUM_PLANES} widths, each at least 1, and multiples of head_dim with heads = True"
        return call.error("caches.bad-planes", f"c.kv(): {message}", expected=expected, found=str(found))

    if not 1 <= len(planes) <= MAXIMUM_PLANES:
        raise bad(f"a row has 1 to {MAXIMUM_PLANES} planes", f"{len(planes)} planes")
    for index, width in enumerate(planes):
        if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width < 2**31:
            raise bad(f"plane {index} is no width", repr(width) if isinstance(width, (bool, int, float, str)) else "another kind")
        if heads and width % head_dim:
            raise bad(f"plane {index} is {width} wide, no multiple of head_dim {head_dim}", f"{list(planes)} with heads = True")


def _scales(call: Call, tracer: Tracer, space: int, planes: int, scales: tuple[Weight, ...] | None) -> tuple[int, ...] | None:
    if scales is None:
        return None

    def bad(message: str, found: str) -> PackageError:
        expected = "one laid-out f32 weight of shape [1] for each plane of an 8-bit space"
        return call.error("caches.bad-scales", f"c.kv(): {message}", expected=expected, found=found)

    if tracer.spaces[space].dtype not in ("e4m3", "e5m2"):
        raise bad("scales belong to 8-bit spaces", f"a space of {tracer.spaces[space].dtype}")
    if len(scales) != planes:
        raise bad("one scale per plane is wanted", f"{len(scales)} scales for {planes} planes")
    ids = []
    for index, weight in enumerate(scales):
        param = tracer.param_of.get(id(weight))
        if param is None:
            raise bad(f"scale {index} is a weight that layout did not return", "a weight outside the layout")
        if weight.shape != (1,) or weight.dtype.name != "f32":
            raise bad(f"scale {index} is {weight}", str(weight))
        ids.append(param.id)
    return tuple(ids)
