"""Every op: calls that are accepted and the types they give, and for every numbered rule a call that breaks it."""

import math
from typing import Any

import pytest

from poem.dtypes import Dtype
from poem.errors import Frame, PackageError
from poem.ops import REGISTRY
from poem.ops.operands import Weight
from poem.ops.record import REQUIRED, Op, Parameter
from tests.poem.ops import calls_attn, calls_conv, calls_elemwise, calls_gather, calls_linear, calls_ssm  # noqa: F401  (they fill the table)
from tests.poem.ops.calls import ACCEPTED, INPUTS, MASK, REFUSED, WHERE, Accepted, Refused, Trace, ids, kv, slab, types_of, v, w

# Quantised weights are taken by these parameters and refused by every other.
TAKE_QUANTISED = {
    ("linear.matmul", "w"),
    ("linear.lm_head", "w"),
    ("linear.matmul_grouped", "w"),
    ("linear.moe_matmul_select", "bank"),
    ("gather.embed", "table"),
    ("gather.embed_weighted", "table"),
    ("gather.embed_concat", "table"),
    ("attn.mla_absorb_q", "kv_b"),
    ("attn.mla_absorb_out", "kv_b"),
}
FIRST = {case.op: case for case in reversed(ACCEPTED)}
each_op = pytest.mark.parametrize("op", REGISTRY.values(), ids=lambda op: op.full_name)


def refusal(op: str, arguments: dict[str, Any]) -> PackageError:
    with pytest.raises(PackageError) as caught:
        print(f"ops.{op}({arguments}) was accepted and gave", types_of(Trace().call(op, arguments)))
    return caught.value


def of_kind(op: Op, *words: str) -> list[Parameter]:
    return [parameter for parameter in op.parameters if parameter.kind.word in words]


def with_argument(op: Op, parameter: Parameter, given: Any) -> dict[str, Any]:
    """The op's first accepted call with one argument replaced."""
    return {**FIRST[op.full_name].arguments, parameter.name: [given] if parameter.kind.many and not parameter.kind.alone else given}


def test_every_op_has_an_accepted_call() -> None:
    assert {case.op for case in ACCEPTED} == set(REGISTRY)


@each_op
def test_every_rule_of_an_op_has_a_refused_call_and_every_refused_call_a_rule(op: Op) -> None:
    tried = {case.rule for case in REFUSED if case.op == op.full_name}
    assert tried == set(op.rules)
    assert list(op.rules) == list(range(1, len(op.rules) + 1))


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: f"{case.op} gives {case.gives or 'nothing'}")
def test_a_call_gives_these_types(case: Accepted) -> None:
    assert types_of(Trace().call(case.op, case.arguments)) == case.gives


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.op} holds that {REGISTRY[case.op].rules.get(case.rule)} {case.code}")
def test_a_call_that_breaks_a_rule_is_refused_and_quotes_it(case: Refused) -> None:
    error = refusal(case.op, {**case.arguments, **case.changed})
    said = error.render()
    assert error.code == case.code, said
    assert error.message.endswith(f"(rule {case.rule})"), said
    parameter = error.message.removeprefix(f"ops.{case.op}: ").split(" ")[0]
    assert parameter in {p.name for p in REGISTRY[case.op].parameters}, said
    assert error.expected, said
    assert error.found, said
    assert (error.file, error.line) == ("example.poem", 7), said


@each_op
def test_a_count_is_an_int_of_at_least_one_or_of_zero_for_an_index(op: Op) -> None:
    for parameter in of_kind(op, "count"):
        least = parameter.kind.least
        error = refusal(op.full_name, with_argument(op, parameter, least - 1))
        assert (error.code, error.expected, error.found) == ("call.bad-value", f"an int >= {least} below 2**31", str(least - 1)), error
        assert refusal(op.full_name, with_argument(op, parameter, 2**31)).code == "call.bad-value"
        for given in (True, 1.0):
            assert refusal(op.full_name, with_argument(op, parameter, given)).code == "call.wrong-kind", f"{parameter.name} = {given}"


@each_op
def test_a_number_is_finite_in_f32(op: Op) -> None:
    for parameter in of_kind(op, "number"):
        for given in (math.nan, math.inf, -math.inf, 1e39):
            error = refusal(op.full_name, with_argument(op, parameter, given))
            assert (error.code, error.expected) == ("call.bad-value", "a finite number"), error


@each_op
def test_an_unknown_word_is_refused_with_the_choices(op: Op) -> None:
    for parameter in of_kind(op, "word"):
        error = refusal(op.full_name, with_argument(op, parameter, "sulu"))
        assert (error.code, error.expected) == ("call.bad-value", " or ".join(parameter.kind.choices)), error


@each_op
def test_an_argument_of_another_kind_is_refused(op: Op) -> None:
    samples: dict[str, Any] = {
        "value": v(4), "weight": w(4), "cache": kv(4), "state": slab(4), "inputs": INPUTS, "mask": MASK,
        "int": 3, "string": "silu", "dict": {}, "bool": True,
    }  # fmt: skip
    accepts = {"count": "int", "integer": "int", "number": "int", "flag": "bool", "word": "string"}
    for parameter in op.parameters:
        taken = {accepts.get(word, word) for word in parameter.kind.word.split(" or ")}
        wanted = "call.bad-value" if parameter.kind.word == "word" else "call.wrong-kind"
        for word, given in samples.items():
            if word not in taken:
                error = refusal(op.full_name, with_argument(op, parameter, given))
                assert error.code == wanted, f"a {word} for {parameter.name}: {error}"


@each_op
def test_a_missing_an_unknown_and_a_surplus_argument_are_named(op: Op) -> None:
    arguments = FIRST[op.full_name].arguments
    for parameter in op.parameters:
        if parameter.default is REQUIRED:
            error = refusal(op.full_name, {name: given for name, given in arguments.items() if name != parameter.name})
            assert error.code == "call.missing-argument", error
            assert f": {parameter.name} is missing" in error.message
    error = refusal(op.full_name, {**arguments, "surely_not": 1})
    assert (error.code, error.expected) == ("call.unknown-argument", op.signature()), error
    trace = Trace()
    given = [trace.make(arguments.get(parameter.name, parameter.default)) for parameter in op.parameters]
    with pytest.raises(PackageError) as caught:
        trace.tracer.call(op.full_name, [*given, None], {}, WHERE)
    assert caught.value.code == "call.too-many", caught.value
    with pytest.raises(PackageError) as caught:
        trace.tracer.call(op.full_name, given, {op.parameters[0].name: given[0]}, WHERE)
    assert caught.value.code == "call.repeated-argument", caught.value


@each_op
def test_arguments_may_be_given_by_position_in_the_order_of_the_signature(op: Op) -> None:
    case = FIRST[op.full_name]
    trace = Trace()
    given = [trace.make(case.arguments.get(parameter.name, parameter.default)) for parameter in op.parameters]
    assert types_of(trace.tracer.call(op.full_name, given, {}, WHERE)) == case.gives


@each_op
def test_a_dtype_that_a_parameter_does_not_list_is_refused(op: Op) -> None:
    for parameter in of_kind(op, "value", "weight", "value or weight"):
        kind = parameter.kind
        for dtype in ("i32", "i64", "u8", "f32", "f16", "bf16", "e4m3"):
            if kind.dtypes and dtype not in kind.dtypes:
                given = w(4, 4, dtype=dtype) if "weight" in kind.word else v(4, dtype)
                error = refusal(op.full_name, with_argument(op, parameter, given))
                assert (error.code, error.expected) == ("forward.dtype", kind.dtype_words()), f"{dtype} for {parameter.name}: {error}"


@each_op
def test_quantised_weights_are_taken_by_nine_parameters_only(op: Op) -> None:
    for parameter in of_kind(op, "weight", "value or weight"):
        for dtype in ("e4m3tile128a8", "nvfp4", "u4g64"):
            if (op.full_name, parameter.name) in TAKE_QUANTISED:
                assert parameter.kind.takes(Dtype(dtype))
            else:
                error = refusal(op.full_name, with_argument(op, parameter, w(64, 64, dtype=dtype)))
                assert error.code == "forward.dtype", f"{dtype} for {parameter.name}: {error}"


def test_a_quantised_weight_makes_bf16_values_of_f32_activations_only_where_it_is_the_first_operand() -> None:
    trace = Trace()
    assert types_of(trace.call("linear.matmul", {"x": v(64, "f32"), "w": w(8, 64, dtype="nvfp4")})) == "[tokens, 8] f32"
    assert types_of(trace.call("gather.embed", {"ids": ids(), "table": w(8, 64, dtype="nvfp4"), "vocab": 8})) == "[tokens, 64] bf16"


def test_defaults_are_filled_into_the_node() -> None:
    short, long = Trace(), Trace()
    arguments = {"x": v(24), "inter": 12}
    short.call("linear.glu", arguments)
    long.call("linear.glu", dict(arguments, act="silu", up=None, limit=None, alpha=None, beta=None, up_cap=None))
    assert short.tracer.graph() == long.tracer.graph()
    assert short.tracer.nodes[0].attributes == {"inter": 12, "act": "silu", "limit": None, "alpha": None, "beta": None, "up_cap": None}


def test_numbers_are_rounded_to_f32_when_traced() -> None:
    trace = Trace()
    trace.call("elemwise.mul_scalar", {"s": 0.1, "x": v(4)})
    assert trace.tracer.nodes[0].attributes == {"s": 0.10000000149011612}


def test_settings_become_plain_data_in_the_node() -> None:
    trace = Trace()
    trace.call("conv.cells", FIRST["conv.cells"].arguments)
    settings = {"k": [1, 3, 3], "stride": [1, 2, 2], "pad": [0, 0, 0], "pad_back": [0, 1, 1], "causal": False, "time_pad": "zero"}
    assert trace.tracer.nodes[0].attributes == {"rule": {"kind": "conv", **settings}}


@each_op
def test_an_op_that_writes_what_it_is_handed_says_so(op: Op) -> None:
    appends = not FIRST[op.full_name].gives
    assert op.effect == ("state" if of_kind(op, "state") else "cache" if appends else "")
    assert of_kind(op, "cache") or not appends


def test_a_value_of_another_trace_is_refused() -> None:
    value = Trace().make(v(4))
    with pytest.raises(PackageError) as caught:
        Trace().tracer.call("elemwise.silu", (value,), {}, WHERE)
    assert caught.value.code == "forward.foreign-value"


def test_a_weight_that_layout_did_not_return_is_refused_with_the_line_that_made_it() -> None:
    lost = Weight((4,), Dtype("bf16"), where=(Frame("lost.poem", 3, "layout"),))
    trace = Trace()
    with pytest.raises(PackageError) as caught:
        trace.tracer.call("elemwise.add_bias", (lost, trace.make(v(4))), {}, WHERE)
    assert (caught.value.code, caught.value.found) == ("forward.unreachable-weight", "made at lost.poem:3")
