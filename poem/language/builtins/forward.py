"""Builtins of the forward phase: op calls, inputs, folds, outputs."""

import json
import re
from typing import Any, NamedTuple

from poem.errors import PackageError
from poem.graph import Attribute, Fold
from poem.language.builtins.record import asked, builtin, check_phase, entry
from poem.language.evaluation import Call, Evaluation
from poem.language.frames import user_frames
from poem.language.inputs import ALL, METHODS, InputMethod
from poem.language.values import Anything, Integer, OfValue, Text, kind_of
from poem.ops import NAMESPACES, REGISTRY
from poem.ops.operands import CacheHandle, Value
from poem.suggest import nearest
from poem.tracer import Tracer

OUTPUT_NAME = re.compile(r"[a-z][a-z0-9_.]*")


def op_names() -> dict[str, list[str]]:
    """The ops of each namespace."""
    names: dict[str, list[str]] = {namespace: [] for namespace in NAMESPACES}
    for op in REGISTRY.values():
        names.setdefault(op.namespace, []).append(op.name)
    return names


def input_methods() -> list[str]:
    """Every method of `inputs` but `fold_layers`."""
    return list(ALL)


UNGUARDED = {f"_py_{f.__name__}": f for f in (op_names, input_methods)}


def _tracer(evaluation: Evaluation) -> Tracer:
    tracer = evaluation.tracer
    assert tracer is not None
    return tracer


# -- op calls ----------------------------------------------------------------------------------------------------------
def _describe(value: Value) -> list[Any]:
    """[number, kind, key, rows, width, dtype] of a value."""
    if value.kind != "tensor":
        return [value.id, value.kind, f"{value.kind} #{value.id}", "", 0, "u8"]
    return [value.id, "tensor", _key(value), value.rows, value.width, value.dtype.name]


def _key(value: Value) -> str:
    """What type rules can see of a value. A rule may ask which node made an integer value, so those are told apart."""
    kind = f"{value.rows} {value.width} {value.dtype.name}"
    return kind if value.dtype.is_float else f"{kind} #{value.id}"


@asked
def op(evaluation: Evaluation, name: str, stack: str, args: list[Any], kwargs: dict[str, Any]) -> str:
    """Check and record an op call.

    Gives [results, number of its plan, operand positions, whether the results are several, number of the next value] as JSON.
    """
    if evaluation.phase != "forward":
        check_phase(Call(evaluation, f"ops.{name}", stack), ("forward",))
    tracer = _tracer(evaluation)
    where = user_frames(stack)
    try:
        results = tracer.call(name, args, kwargs, where)
    except PackageError as error:
        error.column = evaluation.column_of(where, f"ops.{name}")
        raise
    several = isinstance(results, tuple)
    listed = list(results) if several else [] if results is None else [results]
    repeatable = all(value.kind == "tensor" and value.dtype.is_float for value in listed)
    planned = tracer.plan(name, len(args), list(kwargs)) if repeatable else None
    plan, positions = planned or (None, [])
    return json.dumps([[_describe(value) for value in listed], plan, positions, several, len(tracer.values)])


@entry
def repeat(evaluation: Evaluation, following: int, text: str) -> None:
    """Record what the prelude noted since it last called.

    text: a list of numbers: for each op call that of its plan and those of its operands; for the end of a layer -1 - n, then those of
    the n values that it carries on. following: the number of the next value after that.
    """
    tracer, told, at = _tracer(evaluation), json.loads(text), 0
    while at < len(told):
        number, start = told[at], at + 1
        if number < 0:
            at = start - 1 - number
            _end_layer(evaluation, told[start:at])
            continue
        plan = tracer.plans[number]
        at = start + len(plan.operands)
        try:
            tracer.repeat(plan, told[start:at])
        except PackageError as error:
            error.column = evaluation.column_of(plan.where, f"ops.{plan.op}")
            raise
    if len(tracer.values) != following:
        raise evaluation.error("internal.error", f"the prelude counts {following} values, and the trace has {len(tracer.values)}")


# -- inputs ------------------------------------------------------------------------------------------------------------
def _input(method: str, found: InputMethod) -> None:
    def plain(call: Call) -> str:
        return json.dumps(_describe(_tracer(call.evaluation).input(method, found.type, {}, "tensor" if found.type else "mask")))

    def geometry(call: Call, space: Integer | None = None) -> str:
        tracer = _tracer(call.evaluation)
        asked = 0 if space is None else space
        if not tracer.spaces:
            raise call.error(
                "forward.no-space", f"{call.name}() describes a kv space, and caches declares none", expected="c.kv_space(...)"
            )
        if not 0 <= asked < len(tracer.spaces):
            expected = f"0 to {len(tracer.spaces) - 1}"
            raise call.error("forward.unknown-cache", f"{call.name}(): there is no space {asked}", expected=expected, found=str(asked))
        arguments: dict[str, Attribute] = {"space": asked}
        return json.dumps(_describe(tracer.input(method, found.type, arguments)))

    builtin("forward", name=f"inputs.{method}", shown=f"inputs.{method}")(geometry if found.geometry else plain)


for _method, _found in METHODS.items():
    _input(_method, _found)


@builtin("forward", name="inputs.kv", shown="inputs.kv")
def kv(call: Call, space: Text) -> list[Any]:
    """The row of a kv space, by name."""
    return _cache(call, space, "kv")


@builtin("forward", name="inputs.state", shown="inputs.state")
def state(call: Call, name: Text) -> list[Any]:
    """A state, by name."""
    return _cache(call, name, "state")


@entry
def caches(evaluation: Evaluation) -> list[str]:
    """Every declared cache in order: the names, and kinds with keys, for the prelude to answer from."""
    tracer = _tracer(evaluation)
    handles = [tracer.cache_handle(cache) for cache in tracer.caches]
    kinds = [f"{handle.cache.kind}\t{_cache_key(handle)}" for handle in handles]
    return ["\n".join(handle.cache.name for handle in handles), "\n".join(kinds)]


def _cache(call: Call, name: str, kind: str) -> list[Any]:
    """Only reached for a cache that is not declared."""
    declared = {cache.name: cache.kind for cache in _tracer(call.evaluation).caches}
    if name in declared:
        message = f"{call.name}(): `{name}` is a {'state' if kind == 'kv' else 'row of a kv space'}"
        raise call.error("forward.unknown-cache", message, found=repr(name), hint=f'use inputs.{declared[name]}("{name}")')
    near = nearest(name, declared)
    some = [known for known, its in declared.items() if its == kind][:8]
    raise call.error(
        "forward.unknown-cache", f"{call.name}(): caches declares no `{name}`",
        expected="one of " + " ".join(some) if some else f"nothing: caches declares no {kind}",
        found=repr(name), hint=f"did you mean `{near}`?" if near else "",
    )  # fmt: skip


def _cache_key(seen: CacheHandle) -> str:
    """What type rules can see of a cache, without its name and id."""
    cache = seen.cache
    seen_by_rules = (cache.kind, cache.planes, cache.head_dim, cache.heads, cache.scales, cache.slab, cache.dtype, cache.split, seen.space)
    return f"cache {seen_by_rules}"


# -- folds -------------------------------------------------------------------------------------------------------------
@builtin("forward")
def fold_layers(call: Call, layers: Anything, y: Anything | None, block: Anything) -> None:
    """Only reached when the arguments are wrong."""
    if not isinstance(layers, list):
        raise call.error(
            "call.wrong-kind",
            f"inputs.fold_layers(): layers wants a list, found {kind_of(layers)}",
            expected="a list or tuple",
            found=kind_of(layers),
        )
    raise call.error(
        "call.wrong-kind",
        f"inputs.fold_layers(): block wants a function, found {kind_of(block)}",
        expected="a function (l, w, y)",
        found=kind_of(block),
    )


class _Running(NamedTuple):
    id: int
    carried: list[tuple[int, ...]]
    where: tuple[Any, ...]


@entry
def fold(evaluation: Evaluation, stack: str, carried: list[int]) -> None:
    """A fold begins; its first layer is next. carried: the numbers of the values that it starts with."""
    tracer = _tracer(evaluation)
    call = Call(evaluation, "inputs.fold_layers", stack)
    running = evaluation.delivered.get("fold")
    if running is not None:
        outer = f"the outer fold is at {running.where[-1].file}:{running.where[-1].line}" if running.where else ""
        raise call.error("forward.nested-fold", "inputs.fold_layers() inside the block of another fold", found=outer)
    if evaluation.phase != "forward":
        check_phase(call, ("forward",))
    evaluation.delivered["fold"] = _Running(len(tracer.folds), [tuple(carried)], call.where)
    tracer.layer = (len(tracer.folds), 0)


def _end_layer(evaluation: Evaluation, carried: list[int]) -> None:
    running = evaluation.delivered["fold"]
    running.carried.append(tuple(carried))
    _tracer(evaluation).layer = (running.id, len(running.carried) - 1)


@entry
def fold_end(evaluation: Evaluation) -> None:
    """The last layer has ended."""
    tracer = _tracer(evaluation)
    running = evaluation.delivered.pop("fold")
    tracer.folds.append(Fold(running.id, tuple(running.carried)))
    tracer.layer = None


# -- results -----------------------------------------------------------------------------------------------------------
@builtin("forward")
def output(call: Call, name: Text, value: OfValue) -> None:
    """Register a result."""
    tracer = _tracer(call.evaluation)
    if not OUTPUT_NAME.fullmatch(name):
        raise call.error("forward.bad-name", f"{name!r} is no name of an output", expected="[a-z][a-z0-9_.]*", found=repr(name))
    first = tracer.output_where.get(name)
    if first is not None:
        places = [f"{where[-1].file}:{where[-1].line}" for where in (first, call.where) if where]
        raise call.error(
            "forward.duplicate-output", f"an output named `{name}` is registered already", found=f"registered at {' and at '.join(places)}"
        )
    if value.kind != "tensor":
        raise call.error(
            "call.wrong-kind", f"output(): value wants a value, found a {value.kind}", expected="a value", found=f"a {value.kind}"
        )
    if value.trace is not tracer:
        raise call.error("forward.foreign-value", "output(): value belongs to another trace")
    tracer.output(name, value, call.where)


@asked
def returned(evaluation: Evaluation, result: Any) -> None:
    """What forward returned, which must be nothing."""
    if result is not None:
        hint = (
            'register it: output("logits", value)'
            if isinstance(result, (Value, list))
            else "forward returns nothing; results are registered with output(name, value)"
        )
        raise evaluation.error(
            "forward.returned-value", f"forward returned {kind_of(result)}", expected="None", found=kind_of(result), hint=hint
        )
