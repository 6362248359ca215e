"""Packages that are wrong in caches."""

from tests.poem.language.wrong.case import KV, Wrong, toy

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
