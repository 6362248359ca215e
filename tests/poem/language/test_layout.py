"""Layout: how weights are named by where they sit, what a cut does, and that the quick checks agree with the full ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poem.dtypes import Dtype
from poem.errors import PackageError
from poem.graph import Cut
from poem.language.builtins.everywhere import WEIGHT_WORDS
from poem.language.declarations import Layout
from poem.language.walk import Place, Unreadable, places
from tests.poem.language.package_texts import TOY, package


def laid_out(fields: str, before: str = "") -> Layout:
    """The layout of a struct with these fields; `before` runs in front of it. `w` is bf16."""
    text = TOY[: TOY.index("def layout")] + (
        f"def layout(id, deploy):\n    w = deploy.weights[0]\n    V, D = 256, 64\n    {before or 'pass'}\n    return struct({fields})\n\n"
        + TOY[TOY.index("def formats") :]
    )
    return package("toy", text).lay_out("toy-tiny-bf16-kv-bf16")


def names(fields: str, before: str = "") -> list[str]:
    return [param.name for param in laid_out(fields, before).params]


# -- names ---------------------------------------------------------------------------------------------------------------
def test_a_weight_is_named_by_the_fields_that_lead_to_it() -> None:
    assert names("embed = weight([V, D], w)") == ["embed"]
    assert names("layers = [struct(q = weight([D, D], w)) for l in range(4)]")[3] == "layers.3.q"
    assert names("layers = (None, struct(moe = struct(experts = weight([2, D, D], w))))") == ["layers.1.moe.experts"]
    assert names('towers = {"text": struct(blocks = [struct(up = weight([D, D], w))])}') == ["towers.text.blocks.0.up"]


def test_order_is_that_of_the_fields_as_written_and_not_of_the_alphabet() -> None:
    assert names("z = weight([1], w), a = struct(y = weight([1], w), b = weight([1], w)), m = weight([1], w)") == ["z", "a.y", "a.b", "m"]
    assert names("b = weight([1], w), a = weight([2], w)", "") == ["b", "a"]


def test_order_holds_where_nested_structs_repeat_field_names() -> None:
    assert names("q = struct(k = weight([1], w), q = weight([2], w)), k = struct(q = weight([3], w)), a = weight([4], w)") == [
        "q.k",
        "q.q",
        "k.q",
        "a",
    ]


def test_the_same_object_met_again_is_an_alias_and_an_equal_one_is_not() -> None:
    layout = laid_out("embed = e, norm = weight([D], w), head = e, more = [e], twin = weight([V, D], w)", "e = weight([V, D], w)")
    assert [(param.name, param.aliases) for param in layout.params] == [("embed", ("head", "more.0")), ("norm", ()), ("twin", ())]
    assert layout.names()["more.0"] is layout.params[0]


def test_an_explicit_name_wins_over_the_path() -> None:
    layout = laid_out('layers = [weight("tok_table", [V, D], w)], again = weight("x.y-z", [1], w)')
    assert [(param.name, param.aliases) for param in layout.params] == [("tok_table", ()), ("x.y-z", ())]
    named = laid_out("a = e, b = e", 'e = weight("t", [1], w)')
    assert [(param.name, param.aliases) for param in named.params] == [("t", ("b",))]


def test_what_is_no_weight_is_stepped_over() -> None:
    tricky = [
        r'text = "struct(_h=[0], shape=\"\\"',
        "none = None",
        "number = -1.5e30",
        "flag = True",
        'inf = float("inf")',
        "of = w",
        "call = lambda: 1",
        "builtin = len",
        "bound = [].append",
        "part = partial(min, 1, key = None)",
        "r = range(1, 9, 2)",
        "empty = [(), {}, [], struct()]",
        "one = (1,)",
        "scaling = llama3(8.0, 1.0, 4.0, 64)",
        "hidden = partial(max, weight([9], w))",
        'keys = {(1, 2): 3, "x": [4], None: "y"}',
        'iterator = "ab".elems()',
        "kind = type",
        'unicode = "\u2603"',
        "annotation = list[int]",
    ]
    assert names(", ".join([*tricky, "last = weight([1], w)"])) == ["last"]


def test_a_weight_that_only_a_function_holds_does_not_exist() -> None:
    assert names("a = weight([1], w), f = lambda: e", "e = weight([V, D], w)") == ["a"]


def test_where_tells_the_line_that_made_each_weight() -> None:
    layout = laid_out("a = e, b = weight([1], w)", "e = weight([V, D], w)")
    assert [frames[-1].function for frames in layout.where] == ["layout", "layout"]
    assert layout.where[1][-1].line - layout.where[0][-1].line == 1


def test_registered_weights_are_marked() -> None:
    layout = laid_out(
        "a = weight([4, 4], w).registered(), b = weight([4, 4], w).columns().registered(), c = weight([4, 4], w).registered().rows()"
    )
    assert [(param.source, param.cut) for param in layout.params] == [("registered", None), ("registered", Cut(0)), ("registered", Cut(1))]


def test_layout_runs_once_for_all_who_ask_for_the_names() -> None:
    loaded = package("toy", TOY)
    assert loaded.lay_out("toy-tiny-bf16-kv-bf16") is loaded.lay_out("toy-tiny-bf16-kv-bf16")


# -- cuts ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("made", "cut"),
    [
        ("weight([8, 4], w).columns()", Cut(0)),
        ("weight([8, 4], w).columns(heads = 2)", Cut(0, (), (2,))),
        ("weight([8, 4], w).columns(2)", Cut(0, (), (2,))),
        ("weight([8, 4], w).columns(heads = None)", Cut(0)),
        ("weight([8, 4], w).rows()", Cut(1)),
        ("weight([8], w).rows()", Cut(0)),
        ("weight([8, 4], w).packed([4, 2, 2])", Cut(0, (4, 2, 2))),
        ("weight([8, 4], w).packed((4, 4), heads = [2, 1])", Cut(0, (4, 4), (2, 1))),
        ("weight([3, 8, 4], w).bank([6, 2])", Cut(1, (6, 2))),
    ],
)
def test_a_cut_says_axis_segments_and_heads(made: str, cut: Cut) -> None:
    assert laid_out(f"a = {made}").params[0].cut == cut


@pytest.mark.parametrize(
    "made",
    [
        "weight([8, 4], w).columns(heads = 0)",
        "weight([8, 4], w).columns(heads = True)",
        "weight([8, 4], w).columns(heads = 3)",
        "weight([8, 4], w).packed([8, 0])",
        "weight([8, 4], w).packed([4, 3])",
        "weight([8, 4], w).packed([4, 4], heads = [3, 1])",
        "weight([8, 4], w).bank([8])",
        "weight([3, 8, 4], w).bank([7])",
        "weight([8, 4], w).columns().columns()",
        "weight([8, 4], w).columns(1, 2)",
        "weight([8, 4], w).rows(1)",
        "weight([8, 4], w).registered(1)",
    ],
)
def test_a_cut_that_cannot_be_is_refused_at_its_line(made: str) -> None:
    with pytest.raises(PackageError) as caught:
        laid_out(f"a = {made}")
    assert caught.value.code in ("layout.bad-cut", "call.bad-value", "call.too-many"), caught.value.render()
    assert (caught.value.file, caught.value.line) == ("toy.poem", 18)


# -- the quick check -------------------------------------------------------------------------------------------------------
EXTENTS = st.one_of(st.integers(-1, 260), st.sampled_from(["2147483647", "2147483648", "True", "2.0", '"4"', "None"]))


@given(st.lists(EXTENTS, max_size=9), st.sampled_from([*WEIGHT_WORDS, "e4m3", "bool", "e2m1", "u4g32k"]), st.booleans())
def test_a_weight_is_accepted_exactly_when_its_shape_and_dtype_fit(shape: list[object], word: str, as_tuple: bool) -> None:
    extents = ", ".join(map(str, shape))
    given_shape = f"({extents}{',' if len(shape) == 1 else ''})" if as_tuple else f"[{extents}]"
    fits = 1 <= len(shape) <= 8 and all((isinstance(n, int) and n >= 1) or n == "2147483647" for n in shape) and word in WEIGHT_WORDS
    if fits and Dtype(word).is_quantised:
        fits = len(shape) >= 2 and int(str(shape[-1])) % Dtype(word).group_size == 0
    try:
        param, code = laid_out(f"a = weight({given_shape}, dtype.{word})").params[0], ""
    except PackageError as error:
        param, code = None, error.code
    assert fits == (param is not None), f"weight({given_shape}, dtype.{word}): {code or 'accepted'}"
    if param is None:
        assert code in ("layout.bad-shape", "layout.group", "layout.bad-dtype")
    else:
        assert (param.shape, param.dtype) == (tuple(int(str(n)) for n in shape), word)


# -- the walk ------------------------------------------------------------------------------------------------------------
WEIGHT = 'struct(_h=[7], shape=[1], dtype=struct(name="bf16", _key="dtype bf16"), cut_axis=None, _facts=@poem.lambda)'


def test_the_walk_reads_what_the_host_prints() -> None:
    assert places(f'struct(a={WEIGHT}, b=[{WEIGHT}, x.poem.f, {{"k": ({WEIGHT},)}}])') == [
        Place(7, "a"),
        Place(7, "b.0"),
        Place(7, "b.2.k.0"),
    ]
    assert places(f"struct(a={{(1, 2): {WEIGHT}}})") == [Place(7, "a.(1, 2)", "(1, 2)")]


@pytest.mark.parametrize(
    "text", ["", "struct(", "struct(a=", "struct(a=1", "struct(a=1))", "struct(=1)", '{"a" 1}', "struct(_h=[7], shape=[1]"]
)
def test_the_walk_refuses_what_the_host_never_prints(text: str) -> None:
    with pytest.raises(Unreadable):
        places(text)


def test_conv_taps_major_comes_with_media_models() -> None:
    with pytest.raises(PackageError) as caught:
        laid_out("a = weight([4, 4], w).conv_taps_major(2, 2)")
    assert caught.value.code == "media.not-available"


def test_a_layout_of_too_many_things_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from poem.language.limits import LIMITS

    doubling = "x = [weight([1], w)]\n    for i in range(40):\n        x = [x, x]"
    with pytest.raises(PackageError) as caught:
        laid_out("a = x", doubling)
    assert caught.value.code == "budget.size"
    monkeypatch.setattr(LIMITS, "weights", 3)
    with pytest.raises(PackageError) as caught:
        laid_out("a = [weight([1], w) for i in range(4)]")
    assert caught.value.code == "budget.size"


def test_a_deep_struct_is_refused() -> None:
    with pytest.raises(PackageError) as caught:
        laid_out("a = x", "x = weight([1], w)\n    for i in range(70):\n        x = struct(x = x)")
    assert caught.value.code == "layout.too-deep"
    assert names("a = x", "x = weight([1], w)\n    for i in range(60):\n        x = struct(x = x)") == ["a" + ".x" * 60]


def test_a_long_name_is_refused() -> None:
    with pytest.raises(PackageError) as caught:
        laid_out('a = {"k" * 2000: weight([1], w)}')
    assert caught.value.code == "layout.bad-name"


def test_weight_takes_its_arguments_by_name_too() -> None:
    assert names('a = weight(shape = [1], dtype = w), b = weight([2], dtype = w), c = weight("n", shape = [3], dtype = w)') == [
        "a",
        "b",
        "n",
    ]
    for wrong, code in [
        ("weight([1])", "call.missing-argument"),
        ("weight([1], w, shap = 2)", "call.unknown-argument"),
        ("weight(1, 2, 3, 4)", "call.too-many"),
        ("weight([1], 3)", "call.wrong-kind"),
    ]:
        with pytest.raises(PackageError) as caught:
            laid_out(f"a = {wrong}")
        assert caught.value.code == code, caught.value.render()
