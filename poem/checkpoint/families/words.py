"""AWQ and GPTQ: 4-bit codes in words of 32 bits, under `P.qweight`, with `P.qzeros`, `P.scales` and perhaps `P.g_idx`.

They are recognised, so that a plan can say what a checkpoint holds, and not read yet.
"""

from poem.checkpoint.families.common import companions, module_of, unreadable
from poem.checkpoint.stored import Settings, Stored, Table


def find(table: Table, name: str, settings: Settings) -> Stored | None:
    """Words of a weight of that name. config.json tells AWQ from the two forms of GPTQ; the tensors cannot."""
    module = module_of(name)
    raw, scales = table.get(f"{module}.qweight"), table.get(f"{module}.scales")
    if raw is None or len(raw.shape) != 2:
        return None
    tensors = companions(table, name, raw, scales, table.get(f"{module}.qzeros"), table.get(f"{module}.g_idx"))
    method = settings.get("quant_method")
    if method not in ("awq", "gptq"):
        problem = "AWQ or GPTQ words, which cannot be told apart without quantization_config in config.json"
        return unreadable(name, "i32", raw.shape, tensors, problem)
    stated = settings.get("bits")
    bits = stated if stated in (2, 4, 8) else 4
    inputs, outputs = raw.shape
    shape = (outputs * 32 // bits, inputs) if method == "awq" else (outputs, inputs * 32 // bits)
    word = f"{method}{bits}:g{settings.get('group_size', 128)}"
    return unreadable(name, word, shape, tensors, f"{method.upper()} words are not read yet")
