"""What each weight becomes: copied, cast, encoded or decoded as both dtypes ask, of one tensor or of several joined and stacked."""

import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from poem.checkpoint import open_checkpoint
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor
from poem.errors import CheckpointError
from poem.formats.declared import Concat, Fill, Reshape, Scale, Src, Stack, Stride
from poem.graph import Cut
from poem.importer import ImportPlan, plan_import
from tests.poem.checkpoint.files import bf16, write_checkpoint
from tests.poem.importer.fakes import package, pairs, weight
from tests.poem.importer.planning import CODES, FP8, READ, TILE_SCALES, WEIGHTS, codes, opened, refused, tensors


def test_every_weight_lands_with_the_values_of_its_tensors(tmp_path: Path) -> None:
    held = tensors()
    plan = plan_import(opened(tmp_path, held), [package(WEIGHTS, READ)])
    assert list(plan.weights) == list(WEIGHTS)
    expected = {"embed": held["tok.weight"], "norm": held["norm.weight"]}
    for n in (0, 1):
        expected[f"layers.{n}.q"] = held[f"layers.{n}.q.weight"]
        expected[f"layers.{n}.gate_up"] = np.concatenate([held[f"layers.{n}.gate.weight"], held[f"layers.{n}.up.weight"]])
    for name in WEIGHTS:
        assert np.array_equal(plan.weights[name].planes["data"], expected[name]), name
    assert plan.actions == {"copied": 6, "cast": 0, "encoded": 0, "decoded": 0}


def test_a_weight_whose_bytes_can_be_used_is_a_view_of_the_file(tmp_path: Path) -> None:
    plan = plan_import(opened(tmp_path), [package(WEIGHTS, READ)])
    data = plan.weights["embed"].planes["data"]
    assert not data.flags.owndata
    assert not data.flags.writeable


def test_a_registered_weight_takes_no_part(tmp_path: Path) -> None:
    plan = plan_import(opened(tmp_path), [package(WEIGHTS | {"bank": weight([2, 2], source="registered")}, READ)])
    assert "bank" not in plan.weights


def test_planning_reads_no_tensor_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = opened(tmp_path)

    def never(*args: Any) -> None:
        raise AssertionError("tensor data was read")

    monkeypatch.setattr("poem.checkpoint.stored.RawTensor._view", never)
    plan_import(checkpoint, [package(WEIGHTS, READ)])


# -- conversions ---------------------------------------------------------------------------------
def one(tmp_path: Path, held: dict[str, Any], wanted: str, shape: tuple[int, ...], left: Any = "w.weight", **more: Any) -> ImportPlan:
    """The plan for a single weight."""
    config = more.pop("config", None)
    options = {key: more.pop(key) for key in ("requantise",) if key in more}
    made = package({"w": weight(shape, wanted, **more)}, pairs((left, "w")))
    return plan_import(open_checkpoint(write_checkpoint(tmp_path, held, config)), [made], deployment="toy-bf16-kv-bf16", **options)


@pytest.mark.parametrize(
    ("stored", "wanted", "action"),
    [
        ("bf16", "bf16", "copied"), ("u8", "u8", "copied"), ("bf16", "f32", "cast"), ("f32", "bf16", "cast"), ("f16", "f32", "cast"),
        ("f64", "f32", "cast"), ("i64", "i32", "cast"), ("bf16", "u4g64", "encoded"), ("f32", "e4m3tile128", "encoded"),
        ("bf16", "nvfp4", "encoded"),
    ],
)  # fmt: skip
def test_what_is_done_to_a_weight_follows_from_both_dtypes(stored: str, wanted: str, action: str, tmp_path: Path) -> None:
    array = Tensor.encode(np.arange(256.0).reshape(2, 128) % 7, Dtype(stored)).planes["data"]
    plan = one(tmp_path, {"w.weight": array}, wanted, (2, 128))
    assert plan.actions[action] == 1
    assert plan.weights["w"].dtype.name == wanted


@pytest.mark.parametrize("wanted", ["u4g64", "e4m3row", "e4m3tile128", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("shape", [(300, 128), (3, 130, 64)])
def test_encoding_in_strips_gives_what_encoding_the_whole_gives(
    wanted: str, shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poem.importer.landing.STRIP_BYTES", 40 * shape[-1] * 4)
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = one(tmp_path, {"w.weight": array}, wanted, shape).weights["w"]
    expected = Tensor.encode(array, Dtype(wanted))
    assert found.planes.keys() == expected.planes.keys()
    for path, plane in expected.planes.items():
        assert np.array_equal(found.planes[path], plane), path


@pytest.mark.parametrize("wanted", ["nvfp4", "u4g64", "e4m3tile128", "gt_e4m3_f32_n"])
def test_encoding_never_holds_the_floats_of_a_weight(wanted: str, tmp_path: Path) -> None:
    """32 MB of bf16, 64 MB as float32. Codes, factors and a few strips take less than the bf16 did."""
    shape = (4096, 4096)
    plan = one(tmp_path, {"w.weight": np.ones(shape, ml_dtypes.bfloat16)}, wanted, shape)
    tracemalloc.start()
    try:
        found = plan.weights["w"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    bound = found.nbytes + 40_000_000
    assert peak < bound < 2 * found.nbytes + 4 * found.size, f"{peak / 1e6:.0f} MB at most, bound {bound / 1e6:.0f} MB"


@pytest.mark.parametrize("wanted", ["e4m3tile128", "e4m3tile128a8"])
def test_fp8_tiles_are_copied_code_by_code(wanted: str, tmp_path: Path) -> None:
    plan = one(tmp_path, FP8, wanted, (256, 128))
    assert plan.actions["copied"] == 1
    assert np.array_equal(plan.weights["w"].planes["code"], CODES)
    assert np.array_equal(plan.weights["w"].planes["gain"], TILE_SCALES)


@pytest.mark.parametrize(("wanted", "gain"), [("e4m3row", (256,)), ("e4m3tile128", (2, 1)), ("e4m3tile128a8", (2, 1))])
def test_one_fp8_scale_is_repeated_exactly(wanted: str, gain: tuple[int, ...], tmp_path: Path) -> None:
    held = {"w.weight": ("F8_E4M3", CODES), "w.weight_scale": np.array([0.375], ml_dtypes.bfloat16)}
    found = one(tmp_path, held, wanted, (256, 128)).weights["w"]
    assert np.array_equal(found.planes["code"], CODES)
    assert found.planes["gain"].tolist() == np.full(gain, 0.375).tolist()


def test_fused_fp8_parts_with_different_tensor_scales_keep_their_own(tmp_path: Path) -> None:
    held: dict[str, Any] = {}
    for name, scale in (("a", 0.5), ("b", 3.0)):
        held |= {f"{name}.weight": ("F8_E4M3", CODES), f"{name}.weight_scale": np.array([scale], np.float32)}
    found = one(tmp_path, held, "e4m3tile128", (512, 128), ("a.weight", "b.weight")).weights["w"]
    assert found.planes["gain"].reshape(-1).tolist() == [0.5, 0.5, 3.0, 3.0]


MLX = {"quantization": {"bits": 4, "group_size": 128}}


def mlx(leaf: type, scale: float = 0.5) -> dict[str, Any]:
    words = np.random.default_rng(2).integers(0, 2**32, (4, 32), np.uint32)
    return {"w.weight": words, "w.scales": np.full((4, 2), scale, leaf), "w.biases": np.full((4, 2), -1.25, leaf)}


def test_longer_groups_are_repeated_into_shorter_ones(tmp_path: Path) -> None:
    plan = one(tmp_path, mlx(ml_dtypes.bfloat16), "u4g64", (4, 256), config=MLX)
    assert plan.actions["copied"] == 1
    stored = plan.checkpoint.find("w.weight")
    assert stored is not None
    assert stored.word == "u4g128"
    assert np.array_equal(plan.weights["w"].decode(), stored.read(0, 4).decode())


def test_f16_factors_become_bf16_only_where_every_one_is_a_bf16_number(tmp_path: Path) -> None:
    plan = one(tmp_path / "exact", mlx(np.float16), "u4g64", (4, 256), config=MLX)
    assert plan.weights["w"].planes["gain"].dtype == ml_dtypes.bfloat16
    with pytest.raises(CheckpointError) as caught:
        one(tmp_path / "rounded", mlx(np.float16, 0.1), "u4g64", (4, 256), config=MLX)
    assert caught.value.code == "import.requantise"
    assert "every gain is a bf16 number: 0.0999755859375 at [0, 0] is none" in caught.value.message
    plan = one(tmp_path / "rounded", mlx(np.float16, 0.1), "u4g64", (4, 256), config=MLX, requantise=True)
    assert plan.actions["encoded"] == 1
    assert plan.weights["w"].dtype is Dtype("u4g64")


def test_a_quantised_tensor_is_decoded_for_a_float_weight(tmp_path: Path) -> None:
    plan = one(tmp_path, FP8, "bf16", (256, 128))
    assert plan.actions["decoded"] == 1
    values = CODES.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.repeat(TILE_SCALES, 128, 0)
    assert np.array_equal(plan.weights["w"].planes["data"], values.astype(ml_dtypes.bfloat16))


def test_case_67_another_quantised_dtype_is_refused_unless_asked_for(tmp_path: Path) -> None:
    for options in ({}, {"requantise": False}):
        with pytest.raises(CheckpointError) as caught:
            one(tmp_path, mlx(ml_dtypes.bfloat16), "nvfp4", (4, 256), config=MLX, **options)
        assert caught.value.code == "import.requantise"
        assert "--requantise" in caught.value.hint
    plan = one(tmp_path, mlx(ml_dtypes.bfloat16), "nvfp4", (4, 256), config=MLX, requantise=True)
    stored = plan.checkpoint.find("w.weight")
    assert stored is not None
    again = Tensor.encode(stored.read(0, 4).decode(), Dtype("nvfp4"))
    assert np.array_equal(plan.weights["w"].planes["code"], again.planes["code"])


def test_case_68_parts_stored_differently_for_a_quantised_weight(tmp_path: Path) -> None:
    held = {"a.weight": ("F8_E4M3", CODES), "a.weight_scale_inv": TILE_SCALES, "b.weight": bf16(256, 128)}
    with pytest.raises(CheckpointError) as caught:
        one(tmp_path, held, "e4m3tile128", (512, 128), ("a.weight", "b.weight"))
    assert (caught.value.code, caught.value.found) == ("import.mixed-storage", "e4m3tile128 and bf16")
    assert one(tmp_path, held, "bf16", (512, 128), ("a.weight", "b.weight")).actions["decoded"] == 1


def test_case_69_a_part_that_ends_inside_a_tile(tmp_path: Path) -> None:
    held: dict[str, Any] = {}
    for name in ("a", "b"):
        held |= {f"{name}.weight": ("F8_E4M3", CODES[:100]), f"{name}.weight_scale_inv": TILE_SCALES[:1]}
    with pytest.raises(CheckpointError) as caught:
        one(tmp_path, held, "e4m3tile128", (200, 128), ("a.weight", "b.weight"))
    assert (caught.value.code, caught.value.found) == ("import.tile-boundary", "100")


def test_case_70_a_nan_in_a_scale_plane_names_tensor_and_index(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:  # while planning, before anything is written
        one(tmp_path, FP8 | {"w.weight_scale_inv": np.array([[1], [np.nan]], np.float32)}, "e4m3tile128", (256, 128))
    assert caught.value.code == "import.bad-scale"
    assert caught.value.found == "`w.weight_scale_inv` at [1, 0]"


@pytest.mark.parametrize(
    ("array", "wanted", "code"),
    [
        (np.array([[1e39] * 64] * 2), "bf16", "import.overflow"),
        (np.array([[1e5] * 64] * 2, np.float32), "f16", "import.overflow"),
        (np.full((2, 64), 2**40), "i32", "import.overflow"),
        (np.full((2, 64), np.nan, np.float32), "u4g64", "import.bad-value"),
        (np.full((2, 64), np.inf, np.float32), "nvfp4", "import.bad-value"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused_while_it_is_read(array: np.ndarray, wanted: str, code: str, tmp_path: Path) -> None:
    plan = one(tmp_path, {"w.weight": array}, wanted, (2, 64))
    with pytest.raises(CheckpointError) as caught:
        plan.weights["w"]
    assert caught.value.code == code
    assert caught.value.message.startswith("w: ")


@pytest.mark.parametrize(
    ("array", "wanted"),
    [(np.ones((2, 64), np.int32), "bf16"), (np.ones((2, 64), np.uint8), "u4g64"), (np.ones((2, 64), np.float32), "i32")],
)
def test_integers_and_floats_are_not_turned_into_each_other(array: np.ndarray, wanted: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        one(tmp_path, {"w.weight": array}, wanted, (2, 64))
    assert caught.value.code == "import.illegible"


def test_static_scales_of_activations_are_read_dropped_and_mentioned_once(tmp_path: Path) -> None:
    plan = one(tmp_path, FP8 | {"w.input_scale": np.ones(1, np.float32)}, "e4m3tile128", (256, 128))
    assert [note for note in plan.notes if "static scales" in note] == [
        "1 static scales of activations are dropped: activations are left alone, or quantised as they come"
    ]


def test_asking_whether_a_weight_is_there_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_import(opened(tmp_path), [package(WEIGHTS, READ)])
    monkeypatch.setattr("poem.importer.landing.Prepared.whole", lambda self: pytest.fail("a weight was read"))
    assert "embed" in plan.weights
    assert "absent" not in plan.weights


def test_a_scalar_lands_in_a_weight_of_one_element(tmp_path: Path) -> None:
    assert one(tmp_path, {"w.weight": np.array(2.5, np.float32)}, "f32", (1,)).weights["w"].planes["data"].tolist() == [2.5]


def test_an_empty_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is empty"):
        one(tmp_path, {"w.weight": np.zeros((0, 8), np.float32)}, "f32", (1, 8))


# -- joins and stacks ------------------------------------------------------------------------------
def test_parts_join_on_the_cut_axis_of_the_weight(tmp_path: Path) -> None:
    held = {"a": np.ones((4, 2), np.float32), "b": np.zeros((4, 3), np.float32)}
    found = one(tmp_path, held, "f32", (4, 5), ("a", "b"), cut=Cut(1)).weights["w"]
    assert np.array_equal(found.planes["data"], np.concatenate([held["a"], held["b"]], 1))


def test_experts_stack_by_index_and_their_parts_join_without_the_new_axis(tmp_path: Path) -> None:
    held = {f"e.{e}.{part}": bf16(rows, 6, seed=e * 10 + rows) for e in range(4) for part, rows in (("gate", 2), ("up", 3))}
    made = package({"w": weight((3, 5, 6), cut=Cut(1, (2, 3)))}, pairs((Stack(("e.{e}.gate", "e.{e}.up"), "e"), "w")), mini=True)
    plan = plan_import(open_checkpoint(write_checkpoint(tmp_path, held)), [made])
    expected = np.stack([np.concatenate([held[f"e.{e}.gate"], held[f"e.{e}.up"]]) for e in range(3)])
    assert np.array_equal(plan.weights["w"].planes["data"], expected)
    assert [str(entry) for entry in plan.not_read] == ["beyond what this mini lays out: e.3.gate, e.3.up"]


@pytest.mark.parametrize("wanted", ["mxfp4", "bf16"])
def test_rows_of_gate_and_up_that_alternate_are_put_apart_with_their_scales(wanted: str, tmp_path: Path) -> None:
    """gpt-oss: even rows are gate, odd ones up, in codes, scales and bias alike."""
    draw = np.random.default_rng(3)
    blocks, scales = draw.integers(0, 256, (2, 6, 2, 16), np.uint8), draw.integers(120, 134, (2, 6, 2), np.uint8)
    held = {"gate_up_blocks": blocks, "gate_up_scales": scales, "gate_up_bias": bf16(2, 6)}

    def apart(name: str) -> Concat:
        return Concat(1, (Stride(Src(name), 1, 0, 3, 2), Stride(Src(name), 1, 1, 3, 2)))

    made = package(
        {"w": weight((2, 6, 64), wanted), "b": weight((2, 6))}, pairs((apart("gate_up"), "w"), (apart("gate_up_bias"), "b")), dtype=wanted
    )
    plan = plan_import(open_checkpoint(write_checkpoint(tmp_path, held)), [made])
    order = [0, 2, 4, 1, 3, 5]
    assert np.array_equal(plan.weights["b"].planes["data"], held["gate_up_bias"][:, order])
    if wanted == "mxfp4":
        assert plan.actions["copied"] == 2
        assert np.array_equal(plan.weights["w"].planes["code"], blocks[:, order].reshape(2, 6, 32))
        assert np.array_equal(plan.weights["w"].planes["gain"], scales[:, order])
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(2, 6, 64)[:, order]
    assert np.array_equal(plan.weights["w"].decode(dtype=np.float64), e2m1[codes] * np.repeat(2.0 ** (scales[:, order] - 127.0), 32, -1))


def test_case_65_another_number_of_parts_than_segments(tmp_path: Path) -> None:
    made = package({"w": weight((12, 8), cut=Cut(0, (4, 4, 4)))}, pairs((["a", "b"], "w")))
    fault = refused(opened(tmp_path, {"a": bf16(4, 8), "b": bf16(8, 8)}), made)
    assert (fault.code, fault.expected, fault.found) == ("import.shape", "3 segments [4, 4, 4]", "2 parts")


def test_parts_in_the_wrong_order_are_caught_when_their_extents_differ(tmp_path: Path) -> None:
    wrong = pairs(*[(list(pair.left)[::-1] if isinstance(pair.left, tuple) else pair.left, pair.right) for pair in READ])
    fault = refused(opened(tmp_path), package(WEIGHTS, wrong))
    assert codes(fault) == ["import.shape", "import.shape"]
    assert "another order" in fault.hint


def test_values_computed_in_the_package_need_no_tensor(tmp_path: Path) -> None:
    made = package(
        {"scale": weight([1], "f32"), "joined": weight([10, 8])},
        pairs((Fill(1.0, (1,), "f32"), "scale"), (Concat(0, (Scale(Reshape(Src("w"), (8, 8)), 2.0), Fill(0.5, (2, 8), "bf16"))), "joined")),
    )
    table = bf16(64)
    found = plan_import(opened(tmp_path, {"w": table}), [made]).weights
    assert found["scale"].planes["data"].tolist() == [1.0]
    expected = np.concatenate([table.reshape(8, 8).astype(np.float32) * 2, np.full((2, 8), 0.5, np.float32)]).astype(ml_dtypes.bfloat16)
    assert np.array_equal(found["joined"].planes["data"], expected)
