"""A package in Starlark and a checkpoint that it reads, and what comes of importing the one by the other."""

from pathlib import Path
from typing import Any

from poem.checkpoint import open_checkpoint
from poem.errors import PoemError, PoemErrors
from poem.importer import ImportPlan, plan_import
from poem.package import Package, load_package_from_texts
from tests.poem.checkpoint.files import bf16, write_checkpoint

TOY = '''"""Two layers, tied head."""
RAW = template("raw", stop = ["</s>"])
MODELS = [
    model("toy", template = RAW, tokenizer = tokenizer(markers = [["</s>"]], pinned = {"<s>": 1}), parts = ["vision"]),
    model("toy-mini", template = RAW, tokenizer = tokenizer(), mini = True),
]
DEPLOYMENTS = [
    deployment("toy", weights = dtype.bf16, kv = dtype.bf16),
    deployment("toy", weights = dtype.bf16, kv = dtype.bf16, parts = ["vision"]),
    deployment("toy", weights = dtype.nvfp4, kv = dtype.bf16),
    deployment("toy-mini", weights = dtype.f32, kv = dtype.f32),
]
VOCAB, HIDDEN, INTER, KV = 32, 128, 64, 32

def layout(id, deploy):
    w = deploy.weights[0]
    plain = compute(w)
    embed = weight([VOCAB, HIDDEN], plain)
    return struct(
        embed = embed,
        layers = [struct(
            qkv = weight([HIDDEN + 2 * KV, HIDDEN], w).packed([HIDDEN, KV, KV]),
            gate_up = weight([2 * INTER, HIDDEN], w).packed([INTER, INTER]),
            down = weight([HIDDEN, INTER], w).rows(),
            norm = weight([HIDDEN], plain),
        ) for l in range(1 if id == "toy-mini" else 2)],
        vision = weight([4, HIDDEN], plain) if "vision" in deploy.parts else None,
        head = embed,
    )

L = "model.layers.{l}."
PAIRS = [
    ("embed.weight", "embed"),
    ([L + "q.weight", L + "k.weight", L + "v.weight"], "layers.{l}.qkv"),
    ([L + "gate.weight", L + "up.weight"], "layers.{l}.gate_up"),
    (L + "down.weight", "layers.{l}.down"),
    (L + "norm.weight", "layers.{l}.norm"),
    ("vision.weight", "vision"),
    ("lm_head.weight", "head"),
]

def formats(m):
    states = [config("hidden_size", HIDDEN), config("num_hidden_layers", len(m.layers), or_deeper = True)]
    return [format("hub", read = PAIRS, states = states)]

def caches(m, c):
    pass

def forward(m, inputs):
    y = ops.gather.embed(inputs.tokens(), m.embed, VOCAB)
    output("logits", ops.linear.lm_head(ops.gather.gather_rows(y, inputs.readout_rows()), m.head))
'''
ROWS = {"q": 128, "k": 32, "v": 32, "gate": 64, "up": 64}
VOCABULARY = {"model": {"vocab": {"<s>": 1, "</s>": 2}}, "added_tokens": []}


def tensors() -> dict[str, Any]:
    held: dict[str, Any] = {"embed.weight": bf16(32, 128, seed=1)}
    for layer in (0, 1):
        prefix = f"model.layers.{layer}."
        held |= {f"{prefix}{name}.weight": bf16(rows, 128, seed=100 * layer + rows) for name, rows in ROWS.items()}
        held |= {f"{prefix}down.weight": bf16(128, 64, seed=layer), f"{prefix}norm.weight": bf16(128, seed=layer)}
    return held


def toy(*edits: tuple[str, str]) -> Package:
    """The package with some of its text replaced."""
    text = TOY
    for old, new in edits:
        assert old in text, f"the toy does not say {old!r}"
        text = text.replace(old, new)
    return load_package_from_texts("toy", {"toy.poem": text})


def checkpoint(folder: Path, held: dict[str, Any] | None = None, config: dict[str, Any] | None = None, vocabulary: Any = VOCABULARY) -> Any:
    return open_checkpoint(write_checkpoint(folder, tensors() if held is None else held, config, tokenizer=vocabulary))


def outcome(package: Package, opened: Any, deployment: str | None = "toy-bf16-kv-bf16", **more: Any) -> ImportPlan | PoemError:
    try:
        return plan_import(opened, [package], deployment=deployment, **more)
    except PoemError as fault:
        return fault


def faults(found: ImportPlan | PoemError) -> list[PoemError]:
    assert isinstance(found, PoemError), "the plan was made"
    return list(found.errors) if isinstance(found, PoemErrors) else [found]
