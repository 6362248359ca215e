"""A wrong package, and the texts that such packages change."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
