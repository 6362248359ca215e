"""Geometry values of the voxel ops: a convolution's kernel, strides and pads, the rule of a changed box, a segment.

Lists are in the order (t, h, w). A clip is a box of n = (t, h, w) voxels.
"""

from collections.abc import Sequence
from typing import Any

from poem.ops.arguments import bad_value, count, flag
from poem.ops.operands import Convolution, GridRule, Segment

PerAxis = int | Sequence[int]


def conv(
    k: PerAxis,
    stride: PerAxis = 1,
    pad: PerAxis = 0,
    pad_back: PerAxis | None = None,
    causal: str | None = None,
    time_front: int | None = None,
    time_pad: str = "zero",
) -> Convolution:
    """The geometry of a convolution: kernel, strides, and pads in front of and behind the box.

    k, stride, pad and pad_back are one number, or lists of 2 (h, w) or 3 (t, h, w). Where one of them lists 2, the
    convolution is two-dimensional: along time its kernel is 1, its stride 1 and its pads 0. pad_back defaults to pad.
    causal is None, "zero" or "replicate". With causal the time back pad is 0 and the time front pad is time_front, or
    kt - 1 if that is None; the time entries of pad and pad_back are not used, and frames before the clip are zeros or copies
    of the first. Without, time is padded by pad and pad_back like space: with zeros, or with copies of the first and last
    frame if time_pad is "replicate". Space is always padded with zeros.
    Box after it, per axis: (n + front + back - k) // stride + 1.
    """
    given = {"k": k, "stride": stride, "pad": pad, "pad_back": pad if pad_back is None else pad_back}
    lengths = {name: len(value) for name, value in given.items() if isinstance(value, (list, tuple))}
    flat = 2 in lengths.values()
    for name, length in lengths.items():
        if length != (2 if flat else 3):
            raise bad_value(name, "a number or a list of 3, or lists of 2 throughout", given[name])
    axes: dict[str, list[int]] = {}
    for name, value in given.items():
        least = 1 if name in ("k", "stride") else 0
        listed = list(value) if isinstance(value, (list, tuple)) else [value] * (2 if flat else 3)
        axes[name] = [count(name, number, least) for number in ([least, *listed] if flat else listed)]
    if causal not in (None, "zero", "replicate"):
        raise bad_value("causal", "None, zero or replicate", causal)
    if time_pad not in ("zero", "replicate"):
        raise bad_value("time_pad", "zero or replicate", time_pad)
    if causal is None:
        if time_front is not None:
            raise bad_value("time_front", "None without causal", time_front)
    else:
        front = axes["k"][0] - 1 if time_front is None else count("time_front", time_front, 0)
        axes["pad"][0], axes["pad_back"][0] = front, 0
        time_pad = causal
    return Convolution("conv", {**axes, "causal": causal is not None, "time_pad": time_pad})


def upsample_rule(factor: Sequence[int], keep_first: bool = False) -> GridRule:
    """The box of upsample_nearest: t' = t*f0, or 1 + (t - 1)*f0 with keep_first; h' = h*f1, w' = w*f2."""
    return GridRule("upsample", {"factor": three("factor", factor), "keep_first": flag("keep_first", keep_first)})


def shuffle_rule(r: Sequence[int], trim_t: int = 0) -> GridRule:
    """The box of pixel_shuffle and pixel_shuffle_trimming: (t*r0 - trim_t, h*r1, w*r2), trim_t < r0."""
    factors = three("r", r)
    if count("trim_t", trim_t, 0) >= factors[0]:
        raise bad_value("trim_t", f"less than r[0], {factors[0]}", trim_t)
    return GridRule("shuffle", {"r": factors, "trim_t": trim_t})


def unshuffle_rule(r: Sequence[int]) -> GridRule:
    """The box of pixel_unshuffle: (t/r0, h/r1, w/r2); a box that does not divide is a run-time error."""
    return GridRule("unshuffle", {"r": three("r", r)})


def avg_rule(factor: Sequence[int]) -> GridRule:
    """The box of avg_down: (ceil(t/f0), h/f1, w/f2); an h or w that does not divide is a run-time error."""
    return GridRule("avg", {"factor": three("factor", factor)})


def segment(frames: int | None = None) -> Segment:
    """Runs of `frames` frames inside which voxels attend each other; the last run may be short. None: the whole clip."""
    return Segment("segment", {"frames": None if frames is None else count("frames", frames)})


GEOMETRY = {function.__name__: function for function in (conv, upsample_rule, shuffle_rule, unshuffle_rule, avg_rule, segment)}


def three(name: str, given: Any) -> list[int]:
    """A list of three counts."""
    if not isinstance(given, (list, tuple)) or len(given) != 3:
        raise bad_value(name, "a list of 3 counts (t, h, w)", given)
    return [count(name, number) for number in given]
