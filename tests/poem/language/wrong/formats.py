"""Packages that are wrong in formats."""

from tests.poem.language.wrong.case import Wrong, toy

FORMATS = [
    Wrong(
        39,
        "a pair of one",
        toy(('("tok.weight", "embed"),', '("only-one",),')),
        "formats.bad-pair",
        ("pair 0", "1 element"),
        'format("toy"',
    ),
    Wrong(
        39,
        "a pair that is a string",
        toy(('("tok.weight", "embed"),', '"tok.weight",')),
        "formats.bad-pair",
        ("pair 0", "a string"),
        'format("toy"',
    ),
    Wrong(
        39,
        "an empty list of parts",
        toy(('(["layer.gate.weight", "layer.up.weight"], "gate_up")', '([], "gate_up")')),
        "formats.bad-pair",
        ("pair 2", "an empty list"),
        'format("toy"',
    ),
    Wrong(
        39,
        "a right side that is a number",
        toy(('("tok.weight", "embed")', '("tok.weight", 3)')),
        "formats.bad-pair",
        ("pair 0", "an int"),
        'format("toy"',
    ),
    Wrong(
        40,
        "no format",
        toy(("def formats(m):\n", "def formats(m):\n    return []\n")),
        "formats.not-a-list",
        ("at least one format",),
        "def formats",
    ),
    Wrong(
        40,
        "a format without a list",
        toy(('return [format("toy"', 'return format("toy"'), ('"mlp_norm", "down"]])]', '"mlp_norm", "down"]])')),
        "formats.not-a-list",
        ("found a format", "wrap it in [ ]"),
        "def formats",
    ),
    Wrong(
        40,
        "an element that is no format",
        toy(("def formats(m):\n", "def formats(m):\n    return [1]\n")),
        "formats.wrong-element",
        ("an int at index 0",),
        "def formats",
    ),
    Wrong(
        40,
        "two formats of one name",
        toy(("def formats(m):\n", 'def formats(m):\n    return [format("a", read = []), format("a", read = [])]\n')),
        "formats.duplicate",
        ("`a`",),
        'format("a"',
    ),
]
