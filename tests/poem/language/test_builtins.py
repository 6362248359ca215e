"""Builtins: numbers, dtypes, scaling values, call errors, phases, media names."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poem.dtypes import WORDS
from poem.errors import PackageError
from poem.language.builtins.record import BUILTINS
from poem.language.host import BUILTIN_NAMES
from tests.poem.language.package_texts import TOY, package, swapped, toy


def value_of(expression: str) -> str:
    """`repr()` of an expression at load, as a package sees it."""
    with pytest.raises(PackageError) as caught:
        package("toy", f"fail(repr({expression}))\n" + TOY)
    assert caught.value.code == "load.refused", caught.value.render()
    return caught.value.message


def refused(expression: str) -> PackageError:
    """The error of an expression at load."""
    with pytest.raises(PackageError) as caught:
        package("toy", f"X = {expression}\n" + TOY)
    assert (caught.value.file, caught.value.line) == ("toy.poem", 1), caught.value.render()
    return caught.value


@given(st.floats(-1e30, 1e30))
def test_f32_rounds_to_the_nearest_single(x: float) -> None:
    assert value_of(f"f32({x!r}) == {float(np.float32(x))!r}") == "True"


def test_numbers_are_computed_as_stated() -> None:
    assert value_of("sqrt(2)") == repr(math.sqrt(2))
    assert value_of(f"exp(1.0) == {math.e!r}") == "True"
    assert value_of(f"expf(1) == {float(np.float32(math.e))!r}") == "True"
    assert value_of(f"powf32(10000, -0.25) == {float(np.float32(0.1))!r}") == "True"
    assert value_of("[prime_after(n) for n in [1, 2, 13, 7919, -5]]") == "[2, 3, 17, 7927, 2]"
    assert value_of("prime_after(2147483647)") == "2147483659"  # the least prime above the Mersenne prime 2**31 - 1


def test_numpy_integers_are_those_of_the_default_generator() -> None:
    drawn = list(np.random.default_rng(10007).integers(0, 2**62, 5))
    assert value_of(f"numpy_integers(10007, {2**62}, 5)") == str([int(n) for n in drawn])


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("sqrt(-1)", "call.bad-value"),
        ("exp(1e6)", "call.bad-value"),
        ("f32(1e39)", "call.bad-value"),
        ("powf32(-1, 0.5)", "call.bad-value"),
        ("powf32(10, 50)", "call.bad-value"),
        ("expf(1000)", "call.bad-value"),
        ("f32(float('inf'))", "call.bad-value"),
        ("f32(1 << 2000)", "call.bad-value"),
        ("sqrt('x')", "call.wrong-kind"),
        ("sqrt(True)", "call.wrong-kind"),
        ("sqrt()", "call.missing-argument"),
        ("sqrt(None)", "call.missing-argument"),
        ("sqrt(1, 2)", "call.too-many"),
        ("sqrt(y = 1)", "call.unknown-argument"),
        ("sqrt(1, x = 2)", "call.repeated-argument"),
        ("sqrt(x = 1, x = 2)", "call.repeated-argument"),
        ("prime_after(1 << 60)", "call.bad-value"),
        ("numpy_integers(1, 4, 2)", "call.bad-value"),
        ("numpy_integers(-1, 1 << 40, 2)", "call.bad-value"),
        ("numpy_integers(1, 1 << 40, 1 << 30)", "call.bad-value"),
        ("compute(dtype.e8m0)", "call.bad-value"),
        ("compute(dtype.u8)", "call.bad-value"),
        ("compute(3)", "call.wrong-kind"),
        ("compute(dtype.i3g16k)", "call.bad-value"),
        ("struct(1)", "call.too-many"),
        ("llama3(8.0, 4.0, 1.0, 64)", "call.bad-value"),
        ("yarn(8.0, 64)", "call.too-many"),
        ("linear(0)", "call.bad-value"),
        ("longrope([1.0], [1.0, 2.0], 64, 1.0)", "call.bad-value"),
        ("longrope([1.0], ['x'], 64, 1.0)", "call.wrong-kind"),
        ("dtype.bf17", "call.unknown-dtype"),
        ("model('x', template = 3, tokenizer = tokenizer())", "call.wrong-kind"),
        ("model(id = 'x', template = template('llama'), tokenizer = tokenizer())", "call.unknown-argument"),
        ("model('', template = template('llama'), tokenizer = tokenizer())", "manifest.bad-id"),
        ("model('x', template = template('llama'), tokenizer = tokenizer(), layers = -1)", "call.bad-value"),
        ("tokenizer(pinned = {'a': -1})", "call.bad-value"),
        ("tokenizer(pinned = {1: 1})", "call.wrong-kind"),
        ("tokenizer(markers = ['a'])", "call.wrong-kind"),
        ("tokenizer([['a']])", "call.too-many"),
        ("deployment('x', weights = [], kv = dtype.bf16)", "call.bad-value"),
        ("deployment('x', weights = [dtype.bf16] * 9, kv = dtype.bf16)", "call.bad-value"),
        ("deployment('x', weights = 'bf16', kv = dtype.bf16)", "call.wrong-kind"),
        ("dtype(3)", "load.error"),
        ("1 // 0", "load.error"),
        ("[][1]", "load.error"),
        ("{}['k']", "load.error"),
        ("struct(a = 1).b", "load.unknown-field"),
        ("None.x", "load.unknown-field"),
        ("(lambda a: a)()", "call.missing-argument"),
        ("(lambda a: a)(1, 2)", "call.too-many"),
        ("(lambda a: a)(b = 1, a = 2)", "call.unknown-argument"),
        ("undefined", "load.unknown-name"),
    ],
)
def test_a_wrong_call_has_a_code_of_its_own(expression: str, code: str) -> None:
    error = refused(expression)
    assert error.code == code, error.render()


def test_an_unknown_argument_shows_the_whole_signature() -> None:
    error = refused("yarn(factor = 8.0, original_max_position = 64, beta_fats = 3.0)")
    assert error.expected == "yarn(*, factor, original_max_position, beta_fast=32.0, beta_slow=1.0, attention_factor=None, truncate=True)"
    assert error.hint == "did you mean `beta_fast`?"
    assert refused("template('llama', think = 1)").expected.startswith("template(format, /, *, thinking=False")


@pytest.mark.parametrize("word", ["f32", "f16", "bf16", "i64", "i32"])
def test_plain_dtypes_compute_in_themselves(word: str) -> None:
    assert value_of(f"compute(dtype.{word}) == dtype.{word}") == "True"


@pytest.mark.parametrize("word", ["e4m3tile128a8", "nvfp4", "mxfp4", "u4g64", "e4m3row"])
def test_quantised_dtypes_compute_in_bf16(word: str) -> None:
    assert value_of(f"compute(dtype.{word}) == dtype.bf16") == "True"


def test_dtypes_are_equal_by_word_and_may_be_keys() -> None:
    assert (
        value_of("[dtype.bf16 == dtype.bf16, dtype.bf16 == dtype.f16, dtype.bf16.name, {dtype.bf16: 1}[dtype.bf16]]")
        == '[True, False, "bf16", 1]'
    )
    for word in WORDS:
        assert value_of(f"dtype.{word}.name") == f'"{word}"'


def test_a_package_may_use_the_names_of_builtins() -> None:
    text = swapped(TOY, ("VOCAB, HIDDEN", "def conv(x): return x + 1\nlinear, rows, stack = conv(1), 2, 3\nVOCAB, HIDDEN"))
    assert package("toy", text).trace("toy-tiny-bf16-kv-bf16").digest() == toy().trace("toy-tiny-bf16-kv-bf16").digest()


def test_a_builtin_may_be_passed_as_a_value_in_any_phase() -> None:
    assert toy(("VOCAB, HIDDEN", "F = [weight, ops.linear.matmul, output, src]\nVOCAB, HIDDEN")).trace("toy-tiny-bf16-kv-bf16")


PHASE_OF = {
    "load": [
        "model('x', template = 1, tokenizer = 2)",
        "deployment('x', weights = 1, kv = 2)",
        "published(target = 'a')",
        "template('llama')",
        "tokenizer()",
    ],
    "layout": ["weight([1], dtype.bf16)"],
    "formats": [
        "format('x', read = [])",
        "src('x')",
        "has('x')",
        "config('x', 1)",
        "concat(0, [])",
        "stored('x')",
        "fill(0, [1], dtype.f32)",
    ],
    "forward": ["output('x', 1)", "ops.elemwise.silu(1)"],
}


@pytest.mark.parametrize(("home", "call"), [(home, call) for home, calls in PHASE_OF.items() for call in calls])
@pytest.mark.parametrize("phase", ["load", "layout", "formats", "caches", "forward"])
def test_a_builtin_outside_its_phase_names_both(home: str, call: str, phase: str) -> None:
    start = {
        "load": "VOCAB, HIDDEN",
        "layout": "    w = deploy.weights[0]",
        "formats": "    return [format",
        "caches": "    c.kv(c.",
        "forward": "    y = ops.gather.embed",
    }[phase]
    indent = "" if phase == "load" else "    "
    if home == phase:
        return

    def judge() -> None:
        loaded = toy((start, f"{indent}{call}\n{start}"))
        loaded.trace("toy-tiny-bf16-kv-bf16")
        loaded.read_formats("toy-tiny-bf16-kv-bf16", None)

    with pytest.raises(PackageError) as caught:
        judge()
    assert caught.value.code == "phase.wrong", caught.value.render()
    assert f"belongs to {home}; this call runs at {phase} (toy.poem:" in caught.value.message


MEDIA = [
    "merge([])",
    "switch(1, [])",
    "fact.has(fact.Mask)",
    "fact.drafts()",
    "conv(3, 1, 1)",
    "grid_rule(1)",
    "segment()",
    "group_block_diagonal()",
    "unmasked()",
    "reference_self_only(1, 2)",
    "generation([], 3)",
    "reading('x', 0, [], 'logits', 3)",
    "port('x', 'context', 3, [])",
    "positions(1, 2, 3, 4)",
    "latent_space(1, 2, 3, 4, 5, 6)",
    "schedule('flow', 1, 2)",
    "canvas(1, 2, 3)",
]


@pytest.mark.parametrize("expression", MEDIA)
def test_the_names_of_media_models_are_there_and_refuse(expression: str) -> None:
    assert refused(expression).code == "media.not-available"


@pytest.mark.parametrize(
    "method", ["pixels(3)", "grid()", "latents('x', 3, dtype.f32)", "on(1)", "partition([])", "reading('x', 1)", "group_indptr()"]
)
def test_the_inputs_of_media_models_are_there_and_refuse(method: str) -> None:
    with pytest.raises(PackageError) as caught:
        toy(("    y = ops.gather.embed", f"    inputs.{method}\n    y = ops.gather.embed")).trace("toy-tiny-bf16-kv-bf16")
    assert caught.value.code == "media.not-available"


def test_every_visible_name_is_a_builtin_or_a_namespace() -> None:
    by_prelude = {"print", "dtype", "weight", "ops", "fact"}
    assert {name for name in BUILTIN_NAMES if name not in BUILTINS} == by_prelude


INPUTS = {
    "tokens()": "[tokens, 1] i32",
    "positions()": "[tokens, 1] i32",
    "readout_rows()": "[readouts, 1] i32",
    "adapter_routes()": "[tokens, 1] i32",
    "mrope_positions()": "[tokens, 3] i32",
    "request_of_token()": "[tokens, 1] i32",
    "row_valid()": "[tokens, 1] u8",
    "write_page(0)": "[tokens, 1] i32",
    "write_offset(space = 0)": "[tokens, 1] i32",
    "kv_len()": "[lanes, 1] i32",
    "last_page_len()": "[lanes, 1] i32",
    "kv_indptr()": "[lanes+1, 1] i32",
    "lane_indptr()": "[lanes+1, 1] i32",
}


@pytest.mark.parametrize(("method", "type"), INPUTS.items())
def test_inputs_have_their_types_and_are_the_same_when_asked_twice(method: str, type: str) -> None:
    graph = toy(
        (
            "    y = ops.gather.embed",
            f'    a, b = inputs.{method}, inputs.{method}\n    output("a", a)\n    output("b", b)\n    y = ops.gather.embed',
        )
    ).trace("toy-tiny-bf16-kv-bf16")
    a, b = graph.outputs[:2]
    assert a.value == b.value
    assert str(graph.values[a.value].type) == type


def test_geometry_of_no_space_is_refused() -> None:
    no_cache = 'c.kv(c.kv_space(m.kv), "kv", [KV, KV], HEAD_DIM, heads = True)'
    with pytest.raises(PackageError) as caught:
        toy((no_cache, "pass"), ("    y = ops.gather.embed", "    inputs.kv_len()\n    y = ops.gather.embed")).trace(
            "toy-tiny-bf16-kv-bf16"
        )
    assert caught.value.code == "forward.no-space"
    with pytest.raises(PackageError) as caught:
        toy(("    y = ops.gather.embed", "    inputs.kv_len(1)\n    y = ops.gather.embed")).trace("toy-tiny-bf16-kv-bf16")
    assert caught.value.code == "forward.unknown-cache"


def test_a_mask_is_for_attention_only() -> None:
    attend = "o = ops.attn.attend(q, pages, inputs, HEAD_DIM, KV_HEADS, m.sm_scale)"
    graph = toy((attend, attend[:-1] + ", mask = inputs.mask())")).trace("toy-tiny-bf16-kv-bf16")
    (asked,) = [asked for asked in graph.inputs if asked.method == "mask"]
    assert graph.values[asked.value].kind == "mask"
    with pytest.raises(PackageError) as caught:
        toy((attend, 'o = q\n    output("m", inputs.mask())')).trace("toy-tiny-bf16-kv-bf16")
    assert caught.value.code == "call.wrong-kind"


def test_scales_of_an_eight_bit_space_reach_the_cache() -> None:
    fields = (
        "        head = embed,",
        "        head = embed,\n        k_scale = weight([1], dtype.f32),\n        v_scale = weight([1], dtype.f32),",
    )
    scaled = 'c.kv(c.kv_space(dtype.e4m3), "kv", [KV, KV], HEAD_DIM, heads = True, scales = [m.k_scale, m.v_scale])'
    loaded = toy(fields, ('c.kv(c.kv_space(m.kv), "kv", [KV, KV], HEAD_DIM, heads = True)', scaled))
    graph = loaded.trace("toy-tiny-bf16-kv-bf16")
    assert graph.caches[0].scales == (graph.param("k_scale").id, graph.param("v_scale").id)
    assert loaded.notes == []


def test_rows_declared_in_a_loop_differ_in_their_names_only() -> None:
    rows = (
        "s = c.kv_space(m.kv, window = 8)\n    for i in range(4):\n"
        '        c.kv(s, "kv" if i == 0 else "kv.%d" % i, [KV, KV], HEAD_DIM, heads = i != 2)'
    )
    attend = "o = ops.attn.attend(q, pages, inputs, HEAD_DIM, KV_HEADS, m.sm_scale)"
    graph = toy(('c.kv(c.kv_space(m.kv), "kv", [KV, KV], HEAD_DIM, heads = True)', rows), (attend, attend[:-1] + ", window = 8)")).trace(
        "toy-tiny-bf16-kv-bf16"
    )
    assert [(cache.id, cache.name, cache.heads) for cache in graph.caches] == [
        (0, "kv", True),
        (1, "kv.1", True),
        (2, "kv.2", False),
        (3, "kv.3", True),
    ]
    assert graph.spaces[0].window == 8


def test_attention_may_not_look_back_further_than_its_space() -> None:
    windowed = 'c.kv(c.kv_space(m.kv, window = 8), "kv", [KV, KV], HEAD_DIM, heads = True)'
    with pytest.raises(PackageError) as caught:
        toy(('c.kv(c.kv_space(m.kv), "kv", [KV, KV], HEAD_DIM, heads = True)', windowed)).trace("toy-tiny-bf16-kv-bf16")
    assert caught.value.code == "forward.window"
