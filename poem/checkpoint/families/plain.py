"""A tensor of that name, as it is: floats, integers, bools."""

from poem.checkpoint.families.common import companions, unreadable
from poem.checkpoint.families.config import Stated
from poem.checkpoint.stored import Stored, Table
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor

# Codes of a quantised weight; alone they are no numbers.
CODES = ("e4m3", "e5m2", "e2m1", "e8m0")


def find(table: Table, name: str, stated: Stated) -> Stored | None:
    """The tensor of that name. A scalar is read as one element."""
    raw = table.get(name)
    if raw is None:
        return None
    tensors = companions(table, name, raw)
    if raw.leaf is None:
        return unreadable(name, raw.tag.lower(), raw.shape, tensors, f"{raw.tag} is a type that Poem does not read")
    if not raw.shape:
        return Stored(
            name, raw.leaf, (1,), Dtype(raw.leaf), tensors,
            lambda start, stop: Tensor(Dtype(str(raw.leaf)), (stop - start,), {"data": raw.data().reshape(1)[start:stop]}),
        )  # fmt: skip
    if raw.leaf in CODES:
        scaled = raw.leaf != "e4m3" and (f"{name}_scale" in table or f"{name}_scale_inv" in table)
        problem = "codes are not read as weights" if scaled else f"codes without their scale: no {name}_scale or {name}_scale_inv"
        return unreadable(name, raw.leaf, raw.shape, tensors, f"{raw.tag} {problem}")
    return Stored(name, raw.leaf, raw.shape, Dtype(raw.leaf), tensors, raw.tensor)
