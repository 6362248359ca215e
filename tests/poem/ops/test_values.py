"""Attribute values: rope scalings and geometry, checked where they are made."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from poem.ops.geometry import avg_rule, conv, segment, shuffle_rule, unshuffle_rule, upsample_rule
from poem.ops.operands import Convolution
from poem.ops.record import OpRefusal
from poem.ops.scaling import linear, llama3, longrope, yarn

LONG = ([1.0, 1.5], [2.0, 3.0])


def test_scalings_hold_what_was_given_rounded_to_f32_and_with_defaults_filled_in() -> None:
    assert linear(8).as_attribute() == {"kind": "linear", "factor": 8.0}
    assert llama3(8.0, 1.0, 4.0, 8192).as_attribute() == {
        "kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position": 8192,
    }  # fmt: skip
    assert yarn(factor=0.1, original_max_position=4096).as_attribute() == {
        "kind": "yarn", "factor": 0.10000000149011612, "original_max_position": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
        "attention_factor": 1.0, "truncate": True,
    }  # fmt: skip
    assert longrope(*LONG, 4096, 1.25).as_attribute() == {
        "kind": "longrope", "short": [1.0, 1.5], "long": [2.0, 3.0], "original_max_position": 4096, "attention_factor": 1.25, "use": "auto",
    }  # fmt: skip


def test_yarn_takes_its_arguments_by_name_only() -> None:
    with pytest.raises(TypeError):
        yarn(4.0, 4096)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (lambda: linear(0), "factor"),
        (lambda: linear(-1.0), "factor"),
        (lambda: linear(math.nan), "factor"),
        (lambda: linear(math.inf), "factor"),
        (lambda: linear(1e39), "factor"),
        (lambda: linear(1e-60), "factor"),
        (lambda: linear(True), "factor"),
        (lambda: linear("8"), "factor"),  # type: ignore[arg-type]
        (lambda: llama3(0.0, 1.0, 4.0, 8192), "factor"),
        (lambda: llama3(8.0, 0.0, 4.0, 8192), "low_freq_factor"),
        (lambda: llama3(8.0, 4.0, 4.0, 8192), "high_freq_factor"),
        (lambda: llama3(8.0, 1.0, 4.0, 0), "original_max_position"),
        (lambda: llama3(8.0, 1.0, 4.0, 8192.0), "original_max_position"),  # type: ignore[arg-type]
        (lambda: yarn(factor=0.0, original_max_position=8), "factor"),
        (lambda: yarn(factor=4.0, original_max_position=True), "original_max_position"),
        (lambda: yarn(factor=4.0, original_max_position=2**31), "original_max_position"),
        (lambda: yarn(factor=4.0, original_max_position=8, beta_fast=0.0), "beta_fast"),
        (lambda: yarn(factor=4.0, original_max_position=8, beta_slow=-1.0), "beta_slow"),
        (lambda: yarn(factor=4.0, original_max_position=8, attention_factor=0.0), "attention_factor"),
        (lambda: yarn(factor=4.0, original_max_position=8, truncate=1), "truncate"),  # type: ignore[arg-type]
        (lambda: longrope([], [], 8, 1.0), "short"),
        (lambda: longrope(1.0, [1.0], 8, 1.0), "short"),  # type: ignore[arg-type]
        (lambda: longrope([1.0], [1.0, 2.0], 8, 1.0), "long"),
        (lambda: longrope([1.0, 0.0], [1.0, 2.0], 8, 1.0), "short[1]"),
        (lambda: longrope(*LONG, 0, 1.0), "original_max_position"),
        (lambda: longrope(*LONG, 8, 0.0), "attention_factor"),
        (lambda: longrope(*LONG, 8, 1.0, use="never"), "use"),
        (lambda: conv(0), "k"),
        (lambda: conv([3, 3, 3, 3]), "k"),
        (lambda: conv([3, 3], stride=[1, 1, 1]), "stride"),
        (lambda: conv([3, 3], stride=0), "stride"),
        (lambda: conv(3, pad=-1), "pad"),
        (lambda: conv(3, pad_back=[0, 0, True]), "pad_back"),
        (lambda: conv(3, causal="ones"), "causal"),
        (lambda: conv(3, time_pad="wrap"), "time_pad"),
        (lambda: conv(3, time_front=1), "time_front"),
        (lambda: conv(3, causal="zero", time_front=-1), "time_front"),
        (lambda: upsample_rule([2, 2]), "factor"),
        (lambda: upsample_rule([2, 2, 0]), "factor"),
        (lambda: upsample_rule([2, 2, 2], keep_first=1), "keep_first"),  # type: ignore[arg-type]
        (lambda: shuffle_rule([2, 2, 2], trim_t=2), "trim_t"),
        (lambda: unshuffle_rule(2), "r"),  # type: ignore[arg-type]
        (lambda: avg_rule([2, 2]), "factor"),
        (lambda: segment(frames=0), "frames"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_by_name(make: Callable[[], Any], parameter: str) -> None:
    with pytest.raises(OpRefusal) as caught:
        print(make())
    refused = caught.value
    assert (refused.code, refused.parameter) == ("call.bad-value", parameter)
    assert refused.expected
    assert refused.found
    assert str(refused).startswith(f"{parameter} must be ")


def settings(value: Convolution) -> dict[str, Any]:
    return value.settings


def test_a_number_stands_for_all_three_axes() -> None:
    made = settings(conv(3, stride=2, pad=1))
    assert (made["k"], made["stride"], made["pad"], made["pad_back"]) == ([3, 3, 3], [2, 2, 2], [1, 1, 1], [1, 1, 1])


def test_two_numbers_are_height_and_width_and_leave_time_alone() -> None:
    made = settings(conv([3, 5], stride=2, pad=1, pad_back=[0, 2]))
    assert (made["k"], made["stride"], made["pad"], made["pad_back"]) == ([1, 3, 5], [1, 2, 2], [0, 1, 1], [0, 0, 2])


def test_causal_pads_time_in_front_only() -> None:
    made = settings(conv([3, 3, 3], pad=1, causal="replicate"))
    assert (made["pad"], made["pad_back"], made["time_pad"], made["causal"]) == ([2, 1, 1], [0, 1, 1], "replicate", True)
    made = settings(conv([3, 1, 1], stride=[2, 1, 1], causal="zero", time_front=1, time_pad="replicate"))
    assert (made["pad"], made["pad_back"], made["time_pad"]) == ([1, 0, 0], [0, 0, 0], "zero")


def test_rules_and_segments_are_plain_data() -> None:
    assert upsample_rule((2, 1, 1), keep_first=True).as_attribute() == {"kind": "upsample", "factor": [2, 1, 1], "keep_first": True}
    assert shuffle_rule([2, 2, 2], 1).as_attribute() == {"kind": "shuffle", "r": [2, 2, 2], "trim_t": 1}
    assert unshuffle_rule([1, 2, 2]).as_attribute() == {"kind": "unshuffle", "r": [1, 2, 2]}
    assert avg_rule([1, 2, 2]).as_attribute() == {"kind": "avg", "factor": [1, 2, 2]}
    assert segment().as_attribute() == {"kind": "segment", "frames": None}
    assert segment(frames=4).as_attribute() == {"kind": "segment", "frames": 4}
