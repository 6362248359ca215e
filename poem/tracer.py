"""The tracer: binds and checks op calls by their registry records, and records the Graph.

It knows nothing of Starlark: the language calls it with Python operands, and tests may too.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from poem.dtypes import Dtype
from poem.errors import Frame, PackageError
from poem.graph import Attribute, Cache, Fold, Graph, Input, Node, Operand, Output, Param, Ref, Space, ValueType
from poem.graph import Value as GraphValue
from poem.ops import REGISTRY
from poem.ops.operands import CacheHandle, Inputs, Setting, Value, Weight
from poem.ops.record import INT_LIMIT, REQUIRED, Kind, Op, OpRefusal, Parameter, round_to_single
from poem.ops.spellings import spelled_today
from poem.suggest import did_you_mean

MAXIMUM_NODES = 500_000
Where = tuple[Frame, ...]


_WORDS = {
    Weight: "weight", Inputs: "inputs", Dtype: "dtype", bool: "bool", int: "int", float: "float", str: "string", type(None): "None",
    dict: "dict", list: "list", tuple: "tuple",
}  # fmt: skip


def kind_word(item: Any) -> str:
    """The language's word for what a user passed."""
    word = _WORDS.get(type(item))
    if word is not None:
        return word
    if isinstance(item, Value):
        return "value" if item.kind == "tensor" else item.kind
    if isinstance(item, CacheHandle):
        return "cache" if item.cache.kind == "kv" else "state"
    return getattr(item, "word", type(item).__name__.lower())


def with_article(word: str) -> str:
    """The word as a message says it: `a value`, `an int`, `None`."""
    return word if word == "None" else f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


class Plan(NamedTuple):
    """How to record a call again for operands of the same types, at the same place.

    blank: every parameter that takes operands, in order; operands: those that were given, with the kind of what they refer to.
    """

    op: str
    blank: dict[str, Operand]
    operands: tuple[tuple[str, str], ...]
    attributes: dict[str, Attribute]
    results: tuple[ValueType, ...]
    where: Where


class Tracer:
    """Collects one Graph."""

    def __init__(self, package: str, model: str, deployment: str, maximum_nodes: int = MAXIMUM_NODES) -> None:
        self.package, self.model, self.deployment = package, model, deployment
        self.params: list[Param] = []
        self.param_of: dict[int, Param] = {}  # by id(weight)
        self.weights: list[Weight] = []  # keeps those ids alive
        self.spaces: list[Space] = []
        self.caches: list[Cache] = []
        self.inputs_asked: list[Input] = []
        self.input_values: dict[tuple[Any, ...], Value] = {}
        self.values: list[GraphValue] = []
        self.nodes: list[Node] = []
        self.outputs: list[Output] = []
        self.output_where: dict[str, Where] = {}
        self.folds: list[Fold] = []
        self.layer: tuple[int, int] | None = None
        self.handle = Inputs(self)
        self.maximum_nodes = maximum_nodes
        self.plans: list[Plan] = []

    # -- declarations ------------------------------------------------------------------------
    def add_param(self, weight: Weight, name: str, aliases: Sequence[str] = ()) -> Param:
        """Register a laid-out weight under its name."""
        source: Literal["checkpoint", "registered"] = "registered" if weight.registered else "checkpoint"
        param = Param(len(self.params), name, tuple(aliases), weight.shape, weight.dtype.name, weight.cut, source)
        self.params.append(param)
        self.weights.append(weight)
        self.param_of[id(weight)] = param
        return param

    def add_space(self, dtype: str, window: int | None = None) -> int:
        self.spaces.append(Space(len(self.spaces), dtype, window))
        return len(self.spaces) - 1

    def add_kv(
        self, space: int, name: str, planes: Sequence[int], head_dim: int, heads: bool = False, scales: tuple[int, ...] | None = None
    ) -> Cache:
        cache = Cache(len(self.caches), name, "kv", space, tuple(planes), head_dim, heads, scales)
        self.caches.append(cache)
        return cache

    def add_state(self, name: str, slab: Sequence[int], dtype: str, split: int | None = None) -> Cache:
        cache = Cache(len(self.caches), name, "state", slab=tuple(slab), dtype=dtype, split=split)
        self.caches.append(cache)
        return cache

    def cache_handle(self, cache: Cache) -> CacheHandle:
        return CacheHandle(self, cache, self.spaces[cache.space] if cache.kind == "kv" else None)

    # -- inputs ------------------------------------------------------------------------------
    def input(self, method: str, type: ValueType | None, arguments: Mapping[str, Attribute] | None = None, kind: str = "tensor") -> Value:
        """The value of an input method; asking twice gives the same value."""
        arguments = dict(arguments or {})
        key = (method, *sorted((name, repr(value)) for name, value in arguments.items()))
        found = self.input_values.get(key)
        if found is None:
            found = self._value(kind, type, ("input", len(self.inputs_asked)))
            self.inputs_asked.append(Input(len(self.inputs_asked), method, arguments, found.id))
            self.input_values[key] = found
        return found

    # -- ops ---------------------------------------------------------------------------------
    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], where: Where) -> Any:
        """Check and record one op call. Returns a Value, a tuple of them, or None for an append.

        Raises PackageError (`forward.unknown-op`, `call.*`, `forward.*`) at the innermost user frame.
        """
        op = REGISTRY.get(name)
        if op is None:
            raise self._unknown_op(name, where)
        self._check_room(where)
        arguments = self._bind(op, args, kwargs, where)
        operands: dict[str, Operand] = {}
        attributes: dict[str, Attribute] = {}
        for parameter in op.parameters:
            given = arguments[parameter.name]
            if parameter.kind.operand:
                operands[parameter.name] = self._operand(op, parameter, given, where)
            else:
                given = arguments[parameter.name] = self._attribute(op, parameter, given, where)
                attributes[parameter.name] = _as_plain(given)
        try:
            types = op.rule(**arguments)
        except OpRefusal as refusal:
            rule = f" (rule {refusal.rule})" if refusal.rule else ""
            raise self.error(
                refusal.code,
                f"ops.{name}: {refusal.parameter} {refusal.message}{rule}",
                where,
                expected=refusal.expected,
                found=refusal.found,
                hint=refusal.hint,
            ) from None
        several = isinstance(types, list)
        listed = types if several else [] if types is None else [types]
        first = len(self.values)
        node = Node(len(self.nodes), name, operands, attributes, tuple(range(first, first + len(listed))), self.layer, None, where)
        self.nodes.append(node)
        results = tuple(
            self._value("plan" if type == "plan" else "tensor", None if type == "plan" else type, ("node", node.id, i))
            for i, type in enumerate(listed)
        )
        return results if several else results[0] if results else None

    def plan(self, name: str, positional: int, keywords: Sequence[str]) -> tuple[int, list[int]] | None:
        """Plan to repeat the call that was recorded last.

        Gives the number of the plan, and where its operands stand in a call of that many positional arguments and these
        keywords; or None where an operand is a list or a result is no tensor.
        """
        node = self.nodes[-1]
        types = [type for type in (self.values[id].type for id in node.results) if type is not None]
        given = {key: operand for key, operand in node.operands.items() if operand is not None}
        if len(types) < len(node.results) or any(isinstance(operand, list) for operand in given.values()):
            return None
        order = [parameter.name for parameter in REGISTRY[name].parameters[:positional]] + list(keywords)
        operands = tuple((key, operand.kind) for key, operand in given.items())  # type: ignore[union-attr]
        self.plans.append(Plan(name, dict.fromkeys(node.operands), operands, node.attributes, tuple(types), node.where))
        return len(self.plans) - 1, [order.index(key) for key in given]

    def repeat(self, plan: Plan, ids: Sequence[int]) -> None:
        """Record a planned call. ids: of what its operands refer to.

        Raises PackageError (`budget.size`) at the place of the plan.
        """
        self._check_room(plan.where)
        operands = plan.blank.copy()
        for (name, kind), id in zip(plan.operands, ids, strict=True):
            operands[name] = Ref(kind, id)  # type: ignore[arg-type]
        number, values = len(self.nodes), self.values
        first = len(values)
        for index, type_ in enumerate(plan.results):
            values.append(GraphValue(first + index, "tensor", type_, ("node", number, index)))
        results = tuple(range(first, len(values)))
        self.nodes.append(Node(number, plan.op, operands, plan.attributes, results, self.layer, None, plan.where))

    def value(self, id: int) -> Value:
        """A recorded value, as an operand of a call."""
        value = self.values[id]
        rows, width, dtype = value.type or ("", 0, "u8")
        made_by = self.nodes[value.producer[1]] if value.producer[0] == "node" else None
        return Value(self, id, value.kind, rows, width, Dtype(dtype), made_by)

    def output(self, name: str, value: Value, where: Where) -> None:
        """Register a result. The caller has checked the name and that value is a tensor of this trace."""
        self.outputs.append(Output(name, value.id))
        self.output_where[name] = where

    def graph(self) -> Graph:
        """What was recorded, as an immutable Graph."""
        return Graph(
            self.package,
            self.model,
            self.deployment,
            tuple(self.params),
            tuple(self.spaces),
            tuple(self.caches),
            tuple(self.inputs_asked),
            tuple(self.values),
            tuple(self.nodes),
            tuple(self.outputs),
            tuple(self.folds),
        )

    def error(self, code: str, message: str, where: Where, *, expected: str = "", found: str = "", hint: str = "") -> PackageError:
        """A PackageError of phase forward at the innermost frame of `where`."""
        file, line = (where[-1].file, where[-1].line) if where else ("", 0)
        return PackageError(code, message, phase="forward", file=file, line=line, stack=where, expected=expected, found=found, hint=hint)

    # -- inside ------------------------------------------------------------------------------
    def _value(self, kind: str, type: ValueType | None, producer: tuple[Any, ...]) -> Value:
        id = len(self.values)
        self.values.append(GraphValue(id, kind, type, producer))  # type: ignore[arg-type]
        return self.value(id)

    def _check_room(self, where: Where) -> None:
        if len(self.nodes) >= self.maximum_nodes:
            raise self.error("budget.size", f"a trace holds at most {self.maximum_nodes} nodes", where)

    def _unknown_op(self, name: str, where: Where) -> PackageError:
        namespace, _, short = name.partition(".")
        today = spelled_today(name)
        hint = f"use {today}" if today else did_you_mean(short, [op.name for op in REGISTRY.values() if op.namespace == namespace])
        return self.error("forward.unknown-op", f"there is no ops.{name}", where, hint=hint)

    def _bind(self, op: Op, args: Sequence[Any], kwargs: Mapping[str, Any], where: Where) -> dict[str, Any]:
        parameters = op.parameters
        if len(args) > len(parameters):
            raise self.error(
                "call.too-many", f"{op.signature()} takes at most {len(parameters)} arguments", where, found=f"{len(args)} by position"
            )
        bound = {parameter.name: given for parameter, given in zip(parameters, args, strict=False)}
        for name, given in kwargs.items():
            if name in bound:
                raise self.error("call.repeated-argument", f"ops.{op.full_name}: {name} is given twice", where)
            bound[name] = given
        complete: dict[str, Any] = {}
        for parameter in parameters:
            given = bound.pop(parameter.name, parameter.default)
            if given is REQUIRED or (given is None and not parameter.optional):
                raise self.error("call.missing-argument", f"ops.{op.full_name}: {parameter.name} is missing", where, hint=op.signature())
            complete[parameter.name] = given
        if bound:
            name = next(iter(bound))
            hint = did_you_mean(name, [p.name for p in parameters])
            raise self.error(
                "call.unknown-argument", f"ops.{op.full_name} has no parameter {name}", where,
                expected=op.signature(), hint=hint,
            )  # fmt: skip
        return complete

    def _wrong_kind(self, op: Op, parameter: Parameter, given: Any, where: Where) -> PackageError:
        wanted = f"a list of {parameter.kind.word}s" if parameter.kind.many else with_article(parameter.kind.word)
        message = f"ops.{op.full_name}: {parameter.name} wants {wanted}, found {with_article(kind_word(given))}"
        return self.error("call.wrong-kind", message, where, hint=op.signature())

    def _operand(self, op: Op, parameter: Parameter, given: Any, where: Where) -> Operand:
        if given is None:
            return None
        if parameter.kind.many and not (parameter.kind.alone and isinstance(given, Value)):
            if not isinstance(given, (list, tuple)):
                raise self._wrong_kind(op, parameter, given, where)
            return [self._reference(op, parameter, item, where) for item in given]
        return self._reference(op, parameter, given, where)

    def _reference(self, op: Op, parameter: Parameter, given: Any, where: Where) -> Ref:
        kind = parameter.kind
        word = kind_word(given)
        if word != kind.word and word not in kind.word.split(" or "):
            raise self._wrong_kind(op, parameter, given, where)
        if isinstance(given, Weight):
            param = self.param_of.get(id(given))
            if param is None:
                made = given.where[-1] if given.where else Frame("?", 0, "?")
                raise self.error(
                    "forward.unreachable-weight",
                    f"ops.{op.full_name}: {parameter.name} is a weight that layout did not return",
                    where,
                    found=f"made at {made.file}:{made.line}",
                    hint="put it in the struct that layout returns",
                )
            if not kind.takes(given.dtype):
                raise self._wrong_dtype(op, parameter, f"a weight of {given.dtype}", where)
            return Ref("param", param.id)
        if isinstance(given, Inputs):
            return Ref("inputs", 0)
        if given.trace is not self:
            raise self.error("forward.foreign-value", f"ops.{op.full_name}: {parameter.name} belongs to another trace", where)
        if isinstance(given, CacheHandle):
            return Ref("cache", given.cache.id)
        if given.kind == "tensor" and not kind.takes(given.dtype):
            raise self._wrong_dtype(op, parameter, str(given), where)
        return Ref("value", given.id)

    def _wrong_dtype(self, op: Op, parameter: Parameter, found: str, where: Where) -> PackageError:
        return self.error(
            "forward.dtype",
            f"ops.{op.full_name}: {parameter.name} has a dtype that this op does not take",
            where,
            expected=parameter.kind.dtype_words(),
            found=found,
        )

    def _attribute(self, op: Op, parameter: Parameter, given: Any, where: Where) -> Any:
        if given is None:
            return None
        if not parameter.kind.many:
            return self._scalar(op, parameter, given, where)
        if not isinstance(given, (list, tuple)):
            raise self._wrong_kind(op, parameter, given, where)
        return [self._scalar(op, parameter, item, where) for item in given]

    def _scalar(self, op: Op, parameter: Parameter, given: Any, where: Where) -> Any:
        kind: Kind = parameter.kind
        word = kind.word
        if word in ("count", "integer"):
            if isinstance(given, bool) or not isinstance(given, int):
                raise self._wrong_kind(op, parameter, given, where)
            if word == "count" and not kind.least <= given < INT_LIMIT:
                raise self._bad_value(op, parameter, f"an int >= {kind.least} below 2**31", given, where)
            return given
        if word == "number":
            if isinstance(given, bool) or not isinstance(given, (int, float)):
                raise self._wrong_kind(op, parameter, given, where)
            try:
                single = round_to_single(given)
            except OverflowError:
                single = math.inf
            if not math.isfinite(single):
                raise self._bad_value(op, parameter, "a finite number", given, where)
            return single
        if word == "flag":
            if not isinstance(given, bool):
                raise self._wrong_kind(op, parameter, given, where)
            return given
        if word == "word":
            if given not in kind.choices:
                raise self._bad_value(op, parameter, " or ".join(kind.choices), given, where, did_you_mean(str(given), kind.choices))
            return given
        if kind_word(given) not in word.split(" or "):
            raise self._wrong_kind(op, parameter, given, where)
        return given

    def _bad_value(self, op: Op, parameter: Parameter, expected: str, given: Any, where: Where, hint: str = "") -> PackageError:
        return self.error(
            "call.bad-value",
            f"ops.{op.full_name}: {parameter.name} has a value that cannot be used",
            where,
            expected=expected,
            found=repr(given),
            hint=hint,
        )


def _as_plain(given: Any) -> Attribute:
    if isinstance(given, Dtype):
        return given.name
    if isinstance(given, Setting):
        return given.as_attribute()
    return given
