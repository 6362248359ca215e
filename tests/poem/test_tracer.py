"""The tracer by itself: binding, kinds, attributes, plans. It knows nothing of Starlark."""

import inspect
import math
import re
from collections.abc import Sequence
from typing import Any

import pytest

from poem.dtypes import Dtype
from poem.errors import Frame, PackageError
from poem.graph import Ref, ValueType
from poem.ops import REGISTRY
from poem.ops.operands import Value, Weight
from poem.tracer import Plan, Tracer, kind_word, with_article

HERE = (Frame("a.poem", 3, "forward"), Frame("lib/b.poem", 7, "block"))


class Traced:
    """A tracer with a value of each common type, a weight and a cache row."""

    def __init__(self) -> None:
        self.tracer = Tracer("package", "model", "deployment")
        self.x = self.tracer.input("x", ValueType("tokens", 64, "bf16"))
        self.ids = self.tracer.input("ids", ValueType("tokens", 1, "i32"))
        self.norm = Weight((64,), Dtype("bf16"))
        self.tracer.add_param(self.norm, "norm")
        self.table = Weight((256, 64), Dtype("u4g64"))
        self.tracer.add_param(self.table, "table", ["head"])
        space = self.tracer.add_space("bf16")
        self.row = self.tracer.cache_handle(self.tracer.add_kv(space, "kv", [64, 64], 32, True))

    def call(self, op: str, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.call(op, args, kwargs, HERE)

    def refused(self, op: str, *args: Any, **kwargs: Any) -> PackageError:
        with pytest.raises(PackageError) as caught:
            self.call(op, *args, **kwargs)
        assert (caught.value.file, caught.value.line, caught.value.stack) == ("lib/b.poem", 7, HERE)
        assert len(self.tracer.nodes) == 0, "a refused call records nothing"
        return caught.value


@pytest.fixture
def traced() -> Traced:
    return Traced()


def test_a_call_records_a_node_and_gives_its_typed_result(traced: Traced) -> None:
    result = traced.call("elemwise.rmsnorm", traced.x, traced.norm, 1e-5)
    assert isinstance(result, Value)
    assert (result.rows, result.width, result.dtype, result.shape) == ("tokens", 64, Dtype("bf16"), ["tokens", 64])
    (node,) = traced.tracer.graph().nodes
    assert (node.op, node.where, node.layer, node.guard) == ("elemwise.rmsnorm", HERE, None, None)
    assert node.operands == {"x": Ref("value", traced.x.id), "w": Ref("param", 0)}
    assert node.attributes == {"eps": 9.999999747378752e-06}, "rounded to single"
    assert node.results == (result.id,)


def test_defaults_are_filled_in_whatever_was_spelled_out(traced: Traced) -> None:
    traced.call("elemwise.rope", traced.x, None, traced.ids, 32, 10000)
    traced.call("elemwise.rope", theta=10000.0, head_dim=32, positions=traced.ids, k=None, q=traced.x, form="half", rotary_dim=None)
    first, second = traced.tracer.nodes
    assert (first.operands, first.attributes) == (second.operands, second.attributes)
    assert list(first.attributes) == ["head_dim", "theta", "rotary_dim", "form", "part", "scaling", "sections", "inverse"]


def test_several_results_come_as_a_tuple_and_an_append_gives_none(traced: Traced) -> None:
    assert len(traced.call("elemwise.rope", traced.x, traced.x, traced.ids, 32, 1e4)) == 2
    assert traced.call("attn.kv_append", traced.x, traced.x, traced.row) is None


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ([], "call.missing-argument", "x is missing"),
        (["norm", "norm", 1e-5], "call.wrong-kind", "x wants a value, found a weight"),
        (["x", "x", 1e-5], "call.wrong-kind", "w wants a weight, found a value"),
        (["x", 3, 1e-5], "call.wrong-kind", "w wants a weight, found an int"),
        (["x", "norm", "text"], "call.wrong-kind", "eps wants a number, found a string"),
        (["x", "norm", True], "call.wrong-kind", "eps wants a number, found a bool"),
        (["x", "norm", None], "call.missing-argument", "eps is missing"),
        (["x", "norm", math.inf], "call.bad-value", "eps"),
        (["x", "norm", math.nan], "call.bad-value", "eps"),
        (["x", "norm", 1e39], "call.bad-value", "eps"),
        (["x", "norm", 1e-5, 3], "call.too-many", "at most 3"),
        (["x", "table", 1e-5], "forward.dtype", "w"),
        (["ids", "norm", 1e-5], "forward.dtype", "x"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(traced: Traced, given: Sequence[Any], code: str, message: str) -> None:
    named = {"x": traced.x, "norm": traced.norm, "ids": traced.ids, "table": traced.table}
    error = traced.refused("elemwise.rmsnorm", *[named.get(item, item) if isinstance(item, str) else item for item in given])
    assert error.code == code, error.render()
    assert message in error.message, error.render()
    assert "elemwise.rmsnorm" in error.message


def test_names_of_parameters_are_checked(traced: Traced) -> None:
    error = traced.refused("elemwise.rmsnorm", traced.x, traced.norm, epz=1e-5, eps=1e-5)
    assert (error.code, error.hint) == ("call.unknown-argument", "did you mean `eps`?")
    assert traced.refused("elemwise.rmsnorm", traced.x, traced.norm, 1e-5, x=traced.x).code == "call.repeated-argument"


def test_an_op_that_is_not_there_suggests_one(traced: Traced) -> None:
    assert traced.refused("elemwise.rmsnrm").hint == "did you mean `rmsnorm`?"
    assert "ops.linear.glu" in traced.refused("linear.mlp_swiglu").hint


def test_counts_words_and_flags_say_what_they_take(traced: Traced) -> None:
    assert traced.refused("gather.embed", traced.ids, traced.table, -1).code == "call.bad-value"
    assert traced.refused("gather.embed", traced.ids, traced.table, 2.0).code == "call.wrong-kind"
    assert traced.refused("gather.embed", traced.ids, traced.table, 2**31).code == "call.bad-value"
    error = traced.refused("elemwise.rope", traced.x, None, traced.ids, 32, 1e4, form="halv")
    assert error.code == "call.bad-value"
    assert "half or interleaved" in error.expected
    assert error.hint == "did you mean `half`?"
    assert traced.refused("elemwise.rope", traced.x, None, traced.ids, 32, 1e4, inverse=1).code == "call.wrong-kind"


def test_a_weight_outside_the_layout_names_the_line_that_made_it(traced: Traced) -> None:
    lost = Weight((64,), Dtype("bf16"), where=(Frame("a.poem", 9, "layout"),))
    error = traced.refused("elemwise.rmsnorm", traced.x, lost, 1e-5)
    assert (error.code, error.found) == ("forward.unreachable-weight", "made at a.poem:9")


def test_a_value_of_another_trace_is_refused(traced: Traced) -> None:
    other = Traced()
    assert traced.refused("elemwise.silu", other.x).code == "forward.foreign-value"
    assert traced.refused("attn.kv_append", traced.x, traced.x, other.row).code == "forward.foreign-value"


def test_an_input_asked_twice_is_one_value(traced: Traced) -> None:
    again = traced.tracer.input("ids", ValueType("tokens", 1, "i32"))
    other = traced.tracer.input("ids", ValueType("tokens", 1, "i32"), {"space": 1})
    assert again is traced.ids
    assert other is not traced.ids
    assert [asked.method for asked in traced.tracer.graph().inputs] == ["x", "ids", "ids"]


# -- plans -----------------------------------------------------------------------------------------------------------------
def planned(traced: Traced, op: str, positional: int, keywords: Sequence[str] = ()) -> tuple[Plan, list[int]]:
    found = traced.tracer.plan(op, positional, keywords)
    assert found is not None
    return traced.tracer.plans[found[0]], found[1]


def test_a_plan_records_what_the_call_did(traced: Traced) -> None:
    traced.call("elemwise.rope", traced.x, traced.x, traced.ids, 32, theta=1e4)
    plan, positions = planned(traced, "elemwise.rope", 4, ["theta"])
    assert (plan.operands, positions) == ((("q", "value"), ("k", "value"), ("positions", "value")), [0, 1, 2])
    traced.tracer.repeat(plan, [traced.x.id, traced.x.id, traced.ids.id])
    first, second = traced.tracer.nodes
    assert (second.op, second.operands, second.attributes, second.where) == (first.op, first.operands, first.attributes, first.where)
    assert [traced.tracer.values[id].type for id in second.results] == [traced.tracer.values[id].type for id in first.results]
    assert second.results == (len(traced.tracer.values) - 2, len(traced.tracer.values) - 1)
    assert traced.tracer.values[second.results[1]].producer == ("node", 1, 1)


def test_a_plan_takes_weights_caches_and_the_layer(traced: Traced) -> None:
    traced.call("elemwise.rmsnorm", traced.x, traced.norm, 1e-5)
    plan, _ = planned(traced, "elemwise.rmsnorm", 3)
    traced.tracer.layer = (0, 5)
    traced.tracer.repeat(plan, [traced.x.id, 0])
    assert traced.tracer.nodes[1].layer == (0, 5)
    assert traced.tracer.nodes[1].operands == traced.tracer.nodes[0].operands
    traced.call("attn.kv_append", traced.x, traced.x, traced.row)
    plan, _ = planned(traced, "attn.kv_append", 3)
    traced.tracer.repeat(plan, [traced.x.id, traced.x.id, 0])
    assert traced.tracer.nodes[3].operands["cache"] == Ref("cache", 0)
    assert traced.tracer.nodes[3].results == ()


def test_a_recorded_value_is_an_operand_again(traced: Traced) -> None:
    result = traced.call("elemwise.rmsnorm", traced.x, traced.norm, 1e-5)
    again = traced.tracer.value(result.id)
    assert (again.id, again.kind, again.shape, again.dtype) == (result.id, "tensor", ["tokens", 64], Dtype("bf16"))
    assert again.made_by is traced.tracer.nodes[0]
    assert traced.tracer.value(traced.x.id).made_by is None


def test_calls_with_lists_or_plans_are_not_repeated(traced: Traced) -> None:
    traced.call("gather.concat_cols", [traced.x, traced.x])
    assert traced.tracer.plan("gather.concat_cols", 1, []) is None


def test_a_trace_has_a_limit_of_nodes() -> None:
    tracer = Tracer("p", "m", "d", maximum_nodes=2)
    x = tracer.input("x", ValueType("tokens", 64, "bf16"))
    for _ in range(2):
        tracer.call("elemwise.silu", [x], {}, HERE)
    found = tracer.plan("elemwise.silu", 1, [])
    assert found is not None
    for once_more in (lambda: tracer.call("elemwise.silu", [x], {}, HERE), lambda: tracer.repeat(tracer.plans[found[0]], [x.id])):
        with pytest.raises(PackageError) as caught:
            once_more()
        assert (caught.value.code, caught.value.line) == ("budget.size", HERE[-1].line)


def test_rules_look_at_the_maker_of_integer_values_and_plans_only() -> None:
    """Repeating a call is right because a rule sees nothing of a float value but its type."""
    lookers = {name for name, op in REGISTRY.items() if "made_by" in inspect.getsource(op.rule)}
    for name in lookers:
        source = inspect.getsource(REGISTRY[name].rule)
        looked_at = set(re.findall(r"(\w+)\.made_by", source))
        kinds = {parameter.name: parameter.kind for parameter in REGISTRY[name].parameters}
        for looked in looked_at:
            kind = kinds.get(looked)
            assert kind is not None, f"{name} looks at who made `{looked}`, which is no parameter"
            assert kind.word == "plan" or kind.dtypes == ("i32",), f"{name} looks at who made the {kind.word} `{looked}`"


def test_kinds_are_told_in_the_words_of_the_language(traced: Traced) -> None:
    words = [
        kind_word(item) for item in (traced.x, traced.norm, traced.row, traced.tracer.handle, Dtype("f32"), True, 1, 1.0, "a", None, [], {})
    ]
    assert words == ["value", "weight", "cache", "inputs", "dtype", "bool", "int", "float", "string", "None", "list", "dict"]
    assert [with_article(word) for word in ("int", "value", "None")] == ["an int", "a value", "None"]
