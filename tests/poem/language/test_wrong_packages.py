"""Wrong packages, numbered as in docs/errors: what is wrong, the code of the refusal, and what its message has to hold.

The cases 34 to 38 and 57 to 73 need a checkpoint or the expansion of pairs; they are with the tests of the importer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from poem.errors import PackageError, PoemError
from poem.package import load_package, load_package_from_texts
from tests.poem.language.package_texts import BLOCKS, LLAMA, TOY, swapped

Files = Mapping[str, str]


@dataclass(frozen=True)
class Wrong:
    """One case. `holds`: texts that the rendered error contains. `at`: a text of the line that it points at."""

    case: int
    what: str
    files: Files
    code: str
    holds: tuple[str, ...] = ()
    at: str = ""
    file: str = ""
    column: bool = False
    deployment: str = field(default="", kw_only=True)

    def __str__(self) -> str:
        return f"{self.case}-{self.what.replace(' ', '-')}"


def toy(*changes: tuple[str, str], **libraries: str) -> Files:
    return {"toy.poem": swapped(TOY, *changes), **{f"lib/{name}.poem": text for name, text in libraries.items()}}


def llama(*changes: tuple[str, str], blocks: str = BLOCKS) -> Files:
    return {"llama_3.poem": swapped(LLAMA, *changes), "lib/blocks.poem": blocks}


TOY_MODEL = 'model("toy-tiny", template = template("raw", stop = ["</s>"]), tokenizer = tokenizer(markers = [["</s>"]]),'
FIRST_DEPLOYMENT = 'deployment("toy-tiny", weights = dtype.bf16, kv = dtype.bf16)'
VISION = (TOY_MODEL, TOY_MODEL + ' parts = ["vision"],')
MTP = (TOY_MODEL, TOY_MODEL + ' drafters = ["mtp"],')
NORM = "x = ops.elemwise.rmsnorm(y, m.attn_norm, 1e-5)"
OUTPUT = 'output("logits", ops.linear.lm_head(ops.gather.gather_rows(x, inputs.readout_rows()), m.head))'
EMBED = "y = ops.gather.embed(inputs.tokens(), m.embed, VOCAB)"
ATTN_NORM = "attn_norm = weight([HIDDEN], compute(w)),"
Q = "q = weight([Q, HIDDEN], w).columns(heads = HEADS),"
KV = 'c.kv(c.kv_space(m.kv), "kv", [KV, KV], HEAD_DIM, heads = True)'


def fold(block: str) -> tuple[str, str]:
    """A change of the toy that puts a fold over two layers, whose block is given, before the rest of forward."""
    return (EMBED, f"{EMBED}\n\n    def block(l, w, y):\n        {block}\n\n    y = inputs.fold_layers([0, 1], y, block)")


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

MANIFEST = [
    Wrong(
        11,
        "MODEL for MODELS",
        toy(("MODELS =", "MODEL =")),
        "manifest.missing",
        ("no MODELS", "did you mean `MODEL`, on line 2"),
        "MODEL =",
    ),
    Wrong(11, "no forward", toy(("def forward", "def foward")), "manifest.missing", ("no forward", "did you mean `foward`"), "def foward"),
    Wrong(
        12,
        "MODELS is a model",
        toy(("MODELS = [", "MODELS = ("), ("vocab = 256),\n]", "vocab = 256)\n)")),
        "manifest.not-a-list",
        ("found a model", "wrap it in [ ]"),
        "MODELS =",
    ),
    Wrong(
        13,
        "DEPLOYMENTS holds a string",
        toy((FIRST_DEPLOYMENT, '"toy-tiny"')),
        "manifest.wrong-element",
        ("DEPLOYMENTS[0]", "a string at index 0"),
        "DEPLOYMENTS =",
    ),
    Wrong(
        14,
        "two models of one id",
        toy(
            ("def layout", "MODELS.append(MODELS[0])\n\ndef layout"),
            ("MODELS = [", 'T, K = template("llama"), tokenizer()\nMODELS = [\n    model("toy-tiny", template = T, tokenizer = K),'),
        ),
        "manifest.duplicate-model",
        ("`toy-tiny`", "toy.poem:4", "toy.poem:5"),
        TOY_MODEL,
    ),
    Wrong(
        15,
        "a deployment of a model that is not there",
        toy((FIRST_DEPLOYMENT, FIRST_DEPLOYMENT.replace("toy-tiny", "toy-tinny"))),
        "manifest.unknown-model",
        ("did you mean `toy-tiny`",),
        "toy-tinny",
    ),
    Wrong(
        16,
        "an unknown dtype",
        toy(("weights = dtype.bf16", "weights = dtype.bf17")),
        "call.unknown-dtype",
        ("`bf17`", "did you mean `bf16`"),
        "bf17",
        column=True,
    ),
    Wrong(
        17,
        "a kv dtype that is none",
        toy(("kv = dtype.bf16", "kv = dtype.u4g64")),
        "manifest.bad-dtype",
        ("bf16 f16 f32 e4m3 e5m2", "u4g64"),
        "dtype.u4g64",
    ),
    Wrong(
        17,
        "a weight dtype of kv cells",
        toy(("weights = dtype.bf16", "weights = dtype.e4m3")),
        "manifest.bad-dtype",
        ("e4m3tile128", "found:    e4m3"),
        "dtype.e4m3",
    ),
    Wrong(
        17,
        "a dtype that is kept for later",
        toy(("weights = dtype.bf16", "weights = dtype.u4g32k")),
        "manifest.bad-dtype",
        ("u4g32k is reserved for GGUF's Q4_K and not implemented",),
        "u4g32k",
    ),
    Wrong(
        18,
        "an unknown part",
        toy(VISION, (FIRST_DEPLOYMENT, FIRST_DEPLOYMENT[:-1] + ', parts = ["vison"])')),
        "manifest.unknown-part",
        ("`vison`", "did you mean `vision`"),
        "vison",
    ),
    Wrong(
        19,
        "an unknown drafter",
        toy((FIRST_DEPLOYMENT, FIRST_DEPLOYMENT[:-1] + ', drafter = "mtp")')),
        "manifest.unknown-drafter",
        ("this model has no drafters",),
        'drafter = "mtp"',
    ),
    Wrong(20, "a part named like a dtype", toy((TOY_MODEL, TOY_MODEL + ' parts = ["bf16"],')), "manifest.bad-word", ("`bf16`",), "bf16"),
    Wrong(20, "a part with a dash", toy((TOY_MODEL, TOY_MODEL + ' parts = ["a-b"],')), "manifest.bad-word", ("`a-b`",), "a-b"),
    Wrong(
        20, "a part named like a tp suffix", toy((TOY_MODEL, TOY_MODEL + ' drafters = ["tp2"],')), "manifest.bad-word", ("`tp2`",), "tp2"
    ),
    Wrong(
        20,
        "one word for part and drafter",
        toy((TOY_MODEL, TOY_MODEL + ' parts = ["mtp"], drafters = ["mtp"],')),
        "manifest.bad-word",
        ("listed twice",),
        "mtp",
    ),
    Wrong(
        21,
        "an unknown template",
        toy(('template("raw", stop = ["</s>"])', 'template("chatlm", stop = ["x"])')),
        "manifest.unknown-template",
        ("`chatlm`", "did you mean `chatml`"),
        "chatlm",
    ),
    Wrong(
        22,
        "a setting that the template does not read",
        toy(('template("raw", stop = ["</s>"])', 'template("llama", stop = ["x"])')),
        "manifest.template-setting",
        ("`llama`", "reads no `stop`"),
        '"llama"',
    ),
    Wrong(
        22,
        "settings that the template needs",
        toy(('template("raw", stop = ["</s>"])', 'template("lines", stop = ["x"])')),
        "manifest.template-setting",
        ("needs `bos` and `eos`",),
        '"lines"',
    ),
    Wrong(
        23,
        "a misspelt argument",
        toy(('template = template("raw"', 'templ = template("raw"')),
        "call.unknown-argument",
        ("`templ`", "did you mean `template`", "model(id, /, *, template, tokenizer, mini=False"),
        "templ =",
    ),
    Wrong(
        24,
        "a function with too few parameters",
        toy(("def caches(m, c):", "def caches(m):")),
        "manifest.bad-function",
        ("caches takes (m, c)", "found:    1 parameter"),
        "def caches(m):",
    ),
    Wrong(
        24,
        "a list in the place of a function",
        toy(("def formats(m):", "formats = []\n\ndef other(m):")),
        "manifest.bad-function",
        ("formats must be a function",),
        "formats = []",
    ),
    Wrong(
        24,
        "two definitions",
        toy(("def formats", "def forward(m, inputs):\n    pass\n\ndef formats")),
        "manifest.duplicate-definition",
        ("forward is defined twice", "toy.poem:33 and toy.poem:46"),
        "def forward(m, inputs):",
    ),
    Wrong(
        25,
        "a published head for a deployment that is not listed",
        toy(
            (
                "def layout",
                'PUBLISHED = [published(target = "a/b", head = "a/c", drafter = "mtp", '
                'deployment = "toy-tiny-bf16-kv-bf17")]\n\ndef layout',
            )
        ),
        "manifest.published",
        ("did you mean `toy-tiny-bf16-kv-bf16`",),
        "PUBLISHED",
    ),
    Wrong(
        25,
        "a published head whose deployment drafts with another",
        toy(
            MTP,
            (
                "def layout",
                'PUBLISHED = [published(target = "a/b", head = "a/c", drafter = "mtp", '
                'deployment = "toy-tiny-bf16-kv-bf16")]\n\ndef layout',
            ),
        ),
        "manifest.published",
        ("does not draft with `mtp`",),
        "PUBLISHED",
    ),
    Wrong(
        26,
        "a weight at load",
        toy(("def layout", "W = weight([1, 1], dtype.bf16)\n\ndef layout")),
        "phase.wrong",
        ("weight() belongs to layout", "runs at load (toy.poem:14)"),
        "W = weight",
    ),
    Wrong(
        26,
        "an op at load",
        toy(("def layout", "W = ops.linear.matmul(1, 2)\n\ndef layout")),
        "phase.wrong",
        ("ops.linear.matmul() belongs to forward",),
        "W = ops",
    ),
    Wrong(
        26,
        "a model in layout",
        toy(("    w = deploy.weights[0]", '    template("llama")\n    w = deploy.weights[0]')),
        "phase.wrong",
        ("template() belongs to load; this call runs at layout",),
        'template("llama")',
    ),
]

LAYOUT = [
    Wrong(
        27,
        "an extent of 0",
        toy((ATTN_NORM, "attn_norm = weight([4096, 0], w),")),
        "layout.bad-shape",
        (
            "toy.poem:21:21: layout: weight() wants a shape of positive integers [layout.bad-shape]",
            "[4096, 0] (0 at index 1)",
            "integer division",
        ),
        "[4096, 0]",
        column=True,
    ),
    Wrong(
        27,
        "an extent of True",
        toy((ATTN_NORM, "attn_norm = weight([True], w),")),
        "layout.bad-shape",
        ("[True] (True at index 0)",),
        "[True]",
    ),
    Wrong(
        27, "an extent of 4.0", toy((ATTN_NORM, "attn_norm = weight([4.0], w),")), "layout.bad-shape", ("[4.0] (4.0 at index 0)",), "[4.0]"
    ),
    Wrong(27, "a shape of nine axes", toy((ATTN_NORM, "attn_norm = weight([1] * 9, w),")), "layout.bad-shape", ("9 extents",), "[1] * 9"),
    Wrong(27, "a shape that is a number", toy((ATTN_NORM, "attn_norm = weight(64, w),")), "layout.bad-shape", ("an int",), "weight(64"),
    Wrong(
        28,
        "an extent that is not whole groups",
        toy((ATTN_NORM, "attn_norm = weight([64, 100], dtype.u4g64),")),
        "layout.group",
        ("100 is no multiple of 64",),
        "[64, 100]",
    ),
    Wrong(
        28,
        "a quantised norm",
        toy((ATTN_NORM, "attn_norm = weight([4096], dtype.nvfp4),")),
        "layout.group",
        ("rank 2 or more", "compute(dtype)"),
        "[4096]",
    ),
    Wrong(
        28,
        "a dtype that stores no weight",
        toy((ATTN_NORM, "attn_norm = weight([64], dtype.e8m0),")),
        "layout.bad-dtype",
        ("e8m0",),
        "e8m0",
    ),
    Wrong(
        28,
        "a dtype that stores kv cells only",
        toy((ATTN_NORM, "attn_norm = weight([64], dtype.e5m2),")),
        "layout.bad-dtype",
        ("e5m2",),
        "e5m2",
    ),
    Wrong(
        29,
        "segments that do not sum up",
        toy(("packed([INTER, INTER])", "packed([128, 100])")),
        "layout.bad-cut",
        ("sum to 228", "is 256"),
        "packed([128, 100])",
    ),
    Wrong(
        29,
        "heads that do not divide",
        toy((Q, "q = weight([128, HIDDEN], w).columns(heads = 3),")),
        "layout.bad-cut",
        ("128 rows are no multiple of 3",),
        "heads = 3",
    ),
    Wrong(
        29,
        "a second cut",
        toy((Q, "q = weight([Q, HIDDEN], w).columns().rows(),")),
        "layout.bad-cut",
        ("cut already",),
        ".columns().rows()",
    ),
    Wrong(
        29,
        "a bank of two axes",
        toy((Q, "q = weight([Q, HIDDEN], w).bank([32, 32]),")),
        "layout.bad-cut",
        ("[experts, rows, columns]",),
        ".bank",
    ),
    Wrong(
        29,
        "heads for some segments",
        toy(("packed([INTER, INTER])", "packed([INTER, INTER], heads = [4])")),
        "layout.bad-cut",
        ("one count per segment",),
        "heads = [4]",
    ),
    Wrong(
        30,
        "layout returns a dict",
        toy(("return struct(\n        kv = deploy.kv", "return dict(\n        kv = deploy.kv")),
        "layout.not-a-struct",
        ("found a dict",),
        "def layout",
    ),
    Wrong(
        30,
        "a struct without weights",
        toy(("    w = deploy.weights[0]", "    return struct(kv = deploy.kv)\n    w = deploy.weights[0]")),
        "layout.no-weights",
        (),
        "def layout",
    ),
    Wrong(
        31,
        "an explicit name that is a field too",
        toy((Q, 'q = weight("embed", [Q, HIDDEN], w),')),
        "layout.duplicate-name",
        ("`embed`", "`q`"),
        'weight("embed"',
    ),
    Wrong(31, "a name with a slash", toy((Q, 'q = weight("a/b", [Q, HIDDEN], w),')), "layout.bad-name", ("a/b",), 'weight("a/b"'),
    Wrong(
        32, "a dict key with a dot", toy((Q, Q + '\n        extra = {"a.b": weight([HIDDEN], w)},')), "layout.bad-name", ("a.b",), '"a.b"'
    ),
    Wrong(
        32,
        "a dict key that is a number",
        toy((Q, Q + "\n        extra = {1: weight([HIDDEN], w)},")),
        "layout.bad-name",
        ("dict key 1",),
        "{1:",
    ),
    Wrong(
        32,
        "a list that contains itself",
        toy(("    embed = weight", "    loop = []\n    loop.append(loop)\n    embed = weight"), (Q, Q + "\n        loop = loop,")),
        "layout.too-deep",
        ("64",),
        "def layout",
    ),
    Wrong(
        33,
        "layout refuses",
        toy(("    w = deploy.weights[0]", '    fail("only bf16 is shipped")\n    w = deploy.weights[0]')),
        "layout.refused",
        ("only bf16 is shipped", "toy-tiny-bf16-kv-bf16"),
        "fail(",
        column=True,
    ),
]

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

CACHES = [
    Wrong(
        41,
        "a space that is not declared",
        toy((KV, 'c.kv_space(m.kv)\n    c.kv(3, "kv", [KV, KV], HEAD_DIM)')),
        "caches.unknown-space",
        ("only 0 is declared",),
        "c.kv(3",
    ),
    Wrong(
        42,
        "two rows of one name",
        toy((KV, f'{KV}\n    c.kv(0, "kv", [KV, KV], HEAD_DIM)')),
        "caches.duplicate",
        ("`kv`", "toy.poem:41"),
        "c.kv(0",
    ),
    Wrong(
        42, "a row and a state of one name", toy((KV, f'{KV}\n    c.state("kv", [4], dtype.f32)')), "caches.duplicate", ("`kv`",), "c.state"
    ),
    Wrong(
        42,
        "planes that are not whole heads",
        toy((KV, 'c.kv(c.kv_space(m.kv), "kv", [100], 64, heads = True)')),
        "caches.bad-planes",
        ("100 wide", "64"),
        "[100]",
    ),
    Wrong(42, "no planes", toy((KV, 'c.kv(c.kv_space(m.kv), "kv", [], 64)')), "caches.bad-planes", ("0 planes",), "[]"),
    Wrong(
        42,
        "scales of a space that needs none",
        toy((KV, 'c.kv(c.kv_space(m.kv), "kv", [64], 64, scales = [m.norm])')),
        "caches.bad-scales",
        ("8-bit",),
        "scales",
    ),
    Wrong(42, "a space of no kv dtype", toy((KV, "c.kv_space(dtype.u4g64)")), "caches.bad-dtype", ("u4g64",), "u4g64"),
    Wrong(
        42,
        "a split of an axis that is not there",
        toy((KV, f'{KV}\n    c.state("s", [4], dtype.f32, split = 1)')),
        "caches.bad-split",
        ("axis 1",),
        "split = 1",
    ),
]

FORWARD = [
    Wrong(
        43,
        "a cache that is not declared",
        toy(('inputs.kv("kv")', 'inputs.kv("kv.99")')),
        "forward.unknown-cache",
        ("kv.99", "one of kv"),
        "kv.99",
    ),
    Wrong(
        43,
        "a near miss of a cache",
        llama(blocks=swapped(BLOCKS, ("inputs.kv(w.kv)", 'inputs.kv("kv.l")'))),
        "forward.unknown-cache",
        ("did you mean `kv.",),
        "inputs.kv(",
        file="lib/blocks.poem",
    ),
    Wrong(
        43,
        "a state asked as a row",
        toy((KV, f'{KV}\n    c.state("s", [4], dtype.f32)'), ('inputs.kv("kv")', 'inputs.kv("s")')),
        "forward.unknown-cache",
        ('inputs.state("s")',),
        'inputs.kv("s")',
    ),
    Wrong(44, "no output", toy((OUTPUT, "pass")), "forward.no-output", ("output(",), "def forward"),
    Wrong(
        44,
        "two outputs of one name",
        toy((OUTPUT, f'{OUTPUT}\n    output("logits", x)')),
        "forward.duplicate-output",
        ("`logits`", "toy.poem:59", "toy.poem:60"),
        'output("logits", x)',
    ),
    Wrong(44, "a name that is none", toy(('output("logits"', 'output("Logits"')), "forward.bad-name", ("Logits",), "Logits"),
    Wrong(
        45,
        "a returned value",
        toy((OUTPUT, f"{OUTPUT}\n    return x")),
        "forward.returned-value",
        ('output("logits", value)',),
        "def forward",
    ),
    Wrong(
        46,
        "a misspelt op",
        toy((NORM, NORM.replace("rmsnorm", "rmsnrm"))),
        "forward.unknown-op",
        ("ops.elemwise.rmsnrm", "did you mean `rmsnorm`"),
        "rmsnrm",
        column=True,
    ),
    Wrong(
        46,
        "an op of an older namespace",
        toy((EMBED, EMBED.replace("ops.gather", "ops.layout"))),
        "forward.unknown-op",
        ("ops.layout", "ops.gather"),
        "ops.layout",
        column=True,
    ),
    Wrong(
        46,
        "an older spelling",
        toy((EMBED, f"{EMBED}\n    ops.linear.mlp_swiglu(y, 64)")),
        "forward.unknown-op",
        ("ops.linear.glu",),
        "mlp_swiglu",
        column=True,
    ),
    Wrong(
        46,
        "an op of another namespace",
        toy((NORM, NORM.replace("elemwise.rmsnorm", "linear.rmsnorm"))),
        "forward.unknown-op",
        ("ops.elemwise.rmsnorm",),
        "linear.rmsnorm",
        column=True,
    ),
    Wrong(
        47,
        "a weight for a value",
        toy(("ops.linear.matmul(x, m.q)", "ops.linear.matmul(m.q, x)")),
        "call.wrong-kind",
        ("x wants a value, found a weight",),
        "matmul(m.q, x)",
    ),
    Wrong(
        48,
        "a weight of another width",
        llama(
            (
                "def layer(l):\n        return struct(",
                "def layer(l):\n        return struct(\n            wrong = weight([64, 32], plain),",
            ),
            blocks=swapped(BLOCKS, ("ops.linear.matmul(h, w.down)", "ops.linear.matmul(x, w.wrong)")),
        ),
        "forward.shape",
        (": forward: ops.linear.matmul: w is [64, 32] but x is 64 wide", "lib/blocks.poem:", "called from block (llama_3.poem:"),
        "w.wrong",
        file="lib/blocks.poem",
        deployment="llama-test-mini-bf16-kv-bf16",
    ),
    Wrong(
        49,
        "rows of two axes",
        toy((OUTPUT, 'r = ops.gather.gather_rows(x, inputs.readout_rows())\n    output("logits", ops.elemwise.residual_add(r, x))')),
        "forward.axis",
        ("tokens", "readouts"),
        "residual_add(r, x)",
    ),
    Wrong(
        50,
        "a value times a number",
        toy((NORM, f"{NORM}\n    z = x * 0.5")),
        "forward.no-operator",
        ("ops.elemwise.mul_scalar(0.5, x)",),
        "x * 0.5",
        column=True,
    ),
    Wrong(
        50,
        "a number times a value",
        toy((NORM, f"{NORM}\n    z = 2 * x")),
        "forward.no-operator",
        ("ops.elemwise.mul_scalar(2, x)",),
        "2 * x",
        column=True,
    ),
    Wrong(
        50,
        "a sum of values",
        toy((NORM, f"{NORM}\n    z = x + y")),
        "forward.no-operator",
        ("ops.elemwise.add(x, y)",),
        "x + y",
        column=True,
    ),
    Wrong(
        50, "a negated value", toy((NORM, f"{NORM}\n    z = -x")), "forward.no-operator", ("mul_scalar(-1.0, x)",), "z = -x", column=True
    ),
    Wrong(
        51,
        "a weight that layout kept to itself",
        toy(
            ("    embed = weight", "    lost = weight([HIDDEN], w)\n    embed = weight"),
            (ATTN_NORM, f"{ATTN_NORM}\n        lost = lambda: lost,"),
            (NORM, NORM.replace("m.attn_norm", "m.lost()")),
        ),
        "forward.unreachable-weight",
        ("made at toy.poem:16",),
        "m.lost()",
    ),
    Wrong(
        51,
        "the original of a weight that was cut",
        toy(
            ("    embed = weight", "    q = weight([Q, HIDDEN], w)\n    embed = weight"),
            (Q, "q = q.columns(heads = HEADS),\n        whole = lambda: q,"),
            ("ops.linear.matmul(x, m.q)", "ops.linear.matmul(x, m.whole())"),
        ),
        "forward.unreachable-weight",
        ("made at toy.poem:16",),
        "m.whole()",
    ),
    Wrong(
        52,
        "a fold in a fold",
        toy(fold("return inputs.fold_layers([1], y, lambda l, w, y: y)")),
        "forward.nested-fold",
        ("toy.poem:49",),
        "return inputs.fold_layers",
    ),
    Wrong(
        53,
        "a row read before it is appended to",
        toy(
            ("    ops.attn.kv_append(k, ops.linear.matmul(x, m.v), pages)\n", ""),
            ("m.sm_scale)\n", "m.sm_scale)\n    ops.attn.kv_append(k, ops.linear.matmul(x, m.v), pages)\n"),
        ),
        "forward.read-before-append",
        ("`kv`", "read at toy.poem:50", "appended at toy.poem:51"),
        "ops.attn.attend",
    ),
    Wrong(54, "an infinite eps", toy((NORM, NORM.replace("1e-5", 'float("inf")'))), "call.bad-value", ("a finite number",), "inf"),
    Wrong(54, "an eps that is no number", toy((NORM, NORM.replace("1e-5", 'float("nan")'))), "call.bad-value", ("a finite number",), "nan"),
    Wrong(
        55,
        "a misspelt field",
        toy(("m.mlp_norm", "m.mpl_norm")),
        "forward.unknown-field",
        ("`mpl_norm`", "did you mean `mlp_norm`"),
        "mpl_norm",
        column=True,
    ),
    Wrong(
        55,
        "a misspelt input",
        toy(("inputs.positions()", "inputs.position()")),
        "forward.unknown-input",
        ("did you mean `positions`",),
        "inputs.position()",
        column=True,
    ),
]
ALL = LOADING + MANIFEST + LAYOUT + FORMATS + CACHES + FORWARD


def judge(files: Files, deployment: str = "") -> None:
    """Do with a package what a check does: load it, trace it, and read its formats."""
    package = load_package_from_texts(next(iter(files)).removesuffix(".poem"), files)
    name = deployment or next(iter(package.deployments))
    package.trace(name)
    for form in package.read_formats(name, None):
        form.read()


@pytest.mark.parametrize("wrong", ALL, ids=str)
def test_a_wrong_package_is_refused_with_its_code_and_its_place(wrong: Wrong) -> None:
    with pytest.raises(PoemError) as caught:
        judge(wrong.files, wrong.deployment)
    error = caught.value
    text = error.render()
    assert isinstance(error, PackageError), text
    assert error.code == wrong.code, text
    assert [part for part in wrong.holds if part not in text] == [], text
    file = wrong.file or next(iter(wrong.files))
    assert error.file == file, text
    lines = wrong.files[file].split("\n")
    assert 1 <= error.line <= len(lines), text
    assert wrong.at in lines[error.line - 1], f"{text}\npoints at: {lines[error.line - 1]}"
    if wrong.column:
        assert error.column, text
    assert "@" not in text.replace(str(wrong.files), "").split("\n")[0].split(": ")[0], text


def test_every_case_of_a_package_text_is_here() -> None:
    here = {wrong.case for wrong in ALL} | {8, 9, 10, 56}  # the tests below
    assert here == set(range(1, 57)) - set(range(34, 39))


def test_8_a_loop_without_end_stops_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from poem.language.limits import LIMITS

    monkeypatch.setattr(LIMITS, "load_seconds", 0.2)
    with pytest.raises(PackageError) as caught:
        judge(toy(("VOCAB, HIDDEN", "for i in range(1000000000):\n    pass\nVOCAB, HIDDEN")))
    assert (caught.value.code, caught.value.file) == ("budget.time", "toy.poem")


def test_9_a_file_of_two_megabytes_is_too_large(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "big.poem"
    path.write_text("# " + "x" * (2 << 20))
    with pytest.raises(PackageError) as caught:
        load_package(path)
    assert caught.value.code == "load.too-large"
    assert f"{(2 << 20) + 2} bytes" in caught.value.render()
    assert "1048576" in caught.value.render()


def test_9_a_file_that_is_not_utf8_says_which_byte(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "bytes.poem"
    path.write_bytes(b"# fine\n# \xff\n")
    with pytest.raises(PackageError) as caught:
        load_package(path)
    assert (caught.value.code, caught.value.line) == ("load.not-utf8", 2)
    assert "byte 9 is 0xff" in caught.value.render()


def test_10_a_broken_package_does_not_hide_the_others(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from poem.catalogue import load_catalogue

    (tmp_path / "one.poem").write_text(TOY)
    (tmp_path / "two.poem").write_text(TOY.replace("toy-tiny", "other-tiny"))
    (tmp_path / "three.poem").write_text("MODELS = [")
    catalogue = load_catalogue([tmp_path])
    assert [package.name for package in catalogue.packages] == ["one", "two"]
    assert [error.file for error in catalogue.faults] == ["three.poem"]
    assert [error.code for error in catalogue.faults] == ["load.parse"]


@pytest.mark.parametrize(
    ("name", "code", "holds"),
    [
        ("llama31-8b-bf16", "name.bad", ("llama31-8b-bf16", "kv is expected after `bf16`")),
        ("llama31-8b-bf16-kv-bf16-tp1", "name.bad", ("tp starts at 2",)),
        ("llama31-8b-bf16-kv-bf16-tp02", "name.bad", ("tp starts at 2",)),
        ("llama31-8b-bf16-kv-bf16-tp2-x", "name.bad", ("`x`",)),
        ("llama31-8b-bf17-kv-bf16", "name.bad", ("`bf17`", "a weight dtype", "f32 f16 bf16 e4m3row")),
        ("llama31-8b-u4g32k-kv-bf16", "name.bad", ("`u4g32k`", "reserved for GGUF's Q4_K and not implemented")),
        ("llama31-8b-bf16-kv-u4g64", "name.bad", ("`u4g64`", "bf16 f16 f32 e4m3 e5m2")),
        ("llama31-8b", "name.bad", ("the end of the name",)),
        ("lama31-8b-bf16-kv-bf16", "name.unknown-model", ("did you mean `llama31-8b`",)),
    ],
)
def test_56_a_name_that_is_none_says_what_was_understood(name: str, code: str, holds: tuple[str, ...]) -> None:
    from poem.errors import DeploymentNameError

    package = load_package_from_texts("llama_3", {"llama_3.poem": LLAMA, "lib/blocks.poem": BLOCKS})
    with pytest.raises(DeploymentNameError) as caught:
        package.deployment(name)
    assert caught.value.code == code
    text = caught.value.render()
    assert [part for part in holds if part not in text] == [], text
