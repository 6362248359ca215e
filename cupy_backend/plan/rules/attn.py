"""Rules for attention and its caches."""

from cupy_backend.kernels import attn
from cupy_backend.kernels.arrays import unsupported, updating
from cupy_backend.launch import Array, Launch
from cupy_backend.plan.lowering import Lowered, Lowering
from cupy_backend.plan.patterns import Group, operand
from cupy_backend.plan.record import Columns
from cupy_backend.plan.rules.registry import node_of, rule
from cupy_backend.plan.rules.rotary import turn_of
from poem.dtypes.term import LEAF_BITS
from poem.graph import Cache, Node


@rule("rope_append")
def _rope_append(lowering: Lowering, group: Group) -> Lowered:
    rope, append = node_of(lowering, group, 0), node_of(lowering, group, 1)
    cache, (k_cells, v_cells) = _two_planes(lowering, append)
    q, k, v = (lowering.columns(operand(node, name).id) for node, name in ((rope, "q"), (rope, "k"), (append, "v")))
    q_out = lowering.new(rope.results[0])
    launches = attn.rope_append(
        _columns(q), _columns(k), _columns(v), lowering.value(rope, "positions"), turn_of(lowering, rope), q_out, k_cells, v_cells,
        lowering.inputs[f"write_page.{cache.space}"], lowering.inputs[f"write_offset.{cache.space}"],
        head_dim=rope.attributes["head_dim"], nodes=group.nodes,
    )  # fmt: skip
    return Lowered(launches, 3 * q_out.shape[0] * (q.width + k.width), _appended(q_out.shape[0], (q, k, v), (k_cells, v_cells)))


@rule("attn.kv_append")
def _kv_append(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    cache, (k_cells, v_cells) = _two_planes(lowering, node)
    k, v = (lowering.columns(operand(node, name).id) for name in ("k", "v"))
    slots = [
        lowering.value(node, name) if node.operands[name] is not None else lowering.inputs[f"{name}.{cache.space}"]
        for name in ("write_page", "write_offset")
    ]
    launches = attn.kv_append(_columns(k), _columns(v), k_cells, v_cells, slots[0], slots[1], nodes=group.nodes)
    return Lowered(launches, 0, _appended(k.array.shape[0], (k, v), (k_cells, v_cells)))


def _columns(where: Columns) -> attn.Columns:
    return attn.Columns(where.array, where.start, where.width)


def _two_planes(lowering: Lowering, node: Node) -> tuple[Cache, tuple[Array, Array]]:
    cache = lowering.cache(node)
    cells = lowering.cells(cache)
    if len(cells) != 2 or cache.scales is not None:
        raise unsupported("no kernel takes such a cache yet", expected="a plane for K and one for V, without scales", found=cache.name)
    return cache, (cells[0], cells[1])


def _appended(rows: int, parts: tuple[Columns, ...], cells: tuple[Array, ...]) -> dict[str, tuple[int, int]]:
    """Bytes that an append reads of its operands and writes into its cells."""
    touched: dict[str, tuple[int, int]] = {}
    for part in parts:
        before = touched.get(part.array.buffer, (0, 0))[0]
        touched[part.array.buffer] = (before + rows * part.width * LEAF_BITS[part.array.dtype] // 8, 0)
    return touched | {plane.buffer: (0, rows * plane.shape[2] * LEAF_BITS[plane.dtype] // 8) for plane in cells}


# Options of attend that no kernel has yet, and what they are without them.
_PLAIN_ATTEND = {"mask": None, "bias": None, "selection": None, "ratio": 1, "log_scaling": None}


@rule("attn.attend")
def _attend(lowering: Lowering, group: Group) -> Lowered:
    node, attributes = node_of(lowering, group), node_of(lowering, group).attributes
    for name, plain in _PLAIN_ATTEND.items():
        if (node.operands.get(name) if name in node.operands else attributes.get(name)) != plain:
            raise unsupported("no kernel has this option yet", expected=f"attend without {name}", found=name)
    cache, (k_cells, v_cells) = _two_planes(lowering, node)
    q, window = lowering.columns(operand(node, "q").id), attributes["window"]
    head_dim, kv_heads = attributes["head_dim"], attributes["kv_heads"]
    out = lowering.new(node.results[0])
    lse = lowering.new(node.results[1]) if attributes["lse"] else None
    bucket, options, space = lowering.bucket, lowering.options, cache.space
    heads, value_dim = q.width // head_dim, v_cells.shape[2] // kv_heads
    names = ("qo_indptr", "kv_len", f"kv_indptr.{space}", f"kv_indices.{space}")
    lanes = attn.Lanes(*(lowering.inputs[name] for name in names))
    sinks = None
    if node.operands["sinks"] is not None:
        if operand(node, "sinks").kind != "param":
            raise unsupported("no kernel has this option yet", expected="sinks of a weight", found="sinks of a value")
        sinks = lowering.weight(lowering.param(node, "sinks"))["data"]
    # A lane of few rows goes to the kernel for decoding, whatever the other lanes are.
    few = max(1, attn.shape_of(head_dim, value_dim, k_cells.dtype, decode=True).rows * kv_heads // heads)
    kinds = [kind for kind, present in ((True, bucket.shortest <= few), (False, bucket.longest > few)) if present]
    alone = len(kinds) == 1 and not bucket.padded
    launches: list[Launch] = []
    for decode in kinds:
        shape = attn.shape_of(head_dim, value_dim, k_cells.dtype, decode=decode)
        tiles = bucket.lanes if decode else bucket.rows * (heads // kv_heads) // shape.rows + bucket.lanes
        work = lowering.work_list(heads // kv_heads, shape, 1 if decode else few + 1, few if decode else None, tiles)
        pieces = attn.pieces_of(tiles, kv_heads, decode=decode, arch=options.arch, batch_invariant=options.batch_invariant)
        if not options.batch_invariant:
            pieces = min(pieces, -(-bucket.cells // attn.SHORTEST_PIECE))
        size = attn.attention_scratch(out.shape[0], heads, value_dim, pieces)
        launches += attn.attention(
            _columns(q), k_cells, v_cells, out if alone else updating(out), tiles=work, lanes=lanes, head_dim=head_dim, kv_heads=kv_heads,
            sm_scale=attributes["sm_scale"], decode=decode, pieces=pieces, window=window, causal=attributes["causal"],
            softcap=attributes["softcap"], sinks=sinks, lse=lse, scratch=lowering.scratch(size) if size else None, nodes=group.nodes,
        )  # fmt: skip
    cells = bucket.cells if window is None else min(bucket.cells, window + bucket.longest - 1)
    touched = {plane.buffer: (bucket.lanes * cells * plane.shape[2] * LEAF_BITS[plane.dtype] // 8, 0) for plane in (k_cells, v_cells)}
    return Lowered(launches, 2 * bucket.rows * heads * cells * (head_dim + value_dim), touched)
