"""Packages that are wrong in loading and evaluating a package."""

from tests.poem.language.package_texts import BLOCKS
from tests.poem.language.wrong.case import Wrong, llama, toy

LOADING = [
    Wrong(1, "a def that is no def", toy(("def caches(m, c):", "def f(:")), "load.parse", ("def f(:",), "def f(:", column=True),
    Wrong(
        2,
        "an unknown name in a function that is never called",
        toy(("def caches", "def unused(x):\n    return opz.linear\n\ndef caches")),
        "load.unknown-name",
        ("`opz`", "did you mean `ops`"),
        "opz.linear",
        column=True,
    ),
    Wrong(
        3,
        "a relative load",
        toy(("MODELS =", 'load("blocks.poem", "attention")\nMODELS =')),
        "load.bad-path",
        ("//lib/", "put shared code in `lib/`"),
        'load("blocks.poem"',
    ),
    Wrong(
        3,
        "a load that climbs",
        toy(("MODELS =", 'load("//lib/../x.poem", "x")\nMODELS =')),
        "load.bad-path",
        ("//lib/../x.poem", "put shared code in `lib/`"),
        'load("//lib/../x.poem"',
    ),
    Wrong(
        3, "a load from another place", toy(("MODELS =", 'load("@poem", "deliver")\nMODELS =')), "load.bad-path", ("only //lib/",), "@poem"
    ),
    Wrong(
        4,
        "a module that is not there",
        llama(
            ("//lib/blocks.poem", "//lib/blokcs.poem"),
            ('"attention", "swiglu")', '"attention", "swiglu")\nload("//lib/blocks.poem", a = "attention")'),
        ),
        "load.missing-module",
        ("//lib/blokcs.poem", "searched", 'did you mean "//lib/blocks.poem"'),
        "blokcs",
    ),
    Wrong(
        5,
        "a symbol that is not there",
        llama(('"attention", "swiglu"', '"atention", "swiglu"')),
        "load.missing-symbol",
        ("`atention`", "did you mean `attention`"),
        '"atention"',
        column=True,
    ),
    Wrong(
        5,
        "a private symbol",
        llama(('"attention", "swiglu"', '"attention", "swiglu", "_hidden"'), blocks=BLOCKS + "\n_hidden = 1\n"),
        "load.private",
        ("`_hidden`",),
        '"_hidden"',
        column=True,
    ),
    Wrong(
        6,
        "modules that load each other",
        toy(("MODELS =", 'load("//lib/a.poem", "x")\nMODELS ='), a='load("//lib/b.poem", "x")\n', b='load("//lib/a.poem", "x")\n'),
        "load.cycle",
        ("toy.poem -> lib/a.poem -> lib/b.poem -> lib/a.poem",),
        "//lib/a.poem",
        file="lib/b.poem",
    ),
    Wrong(
        7,
        "layout changes a list of the top level",
        toy(("def layout(id, deploy):\n", "SEEN = []\n\ndef layout(id, deploy):\n    SEEN.append(id)\n")),
        "load.frozen",
        ("copy it first",),
        "SEEN.append(id)",
        column=True,
    ),
    Wrong(
        8,
        "a function that calls itself without end",
        toy(("VOCAB, HIDDEN", "def f(n):\n    return f(n + 1)\n\nf(0)\nVOCAB, HIDDEN")),
        "budget.depth",
        ("400",),
        "return f(n + 1)",
    ),
]
