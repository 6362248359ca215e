"""A .zt file holds all that was planned, and appears whole or not at all, whatever interrupts it."""

import fcntl
import hashlib
import json
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ztensor

from poem.artifact import Container, write_artifact
from poem.artifact.container import Object, object_of, publish
from poem.checkpoint import open_checkpoint
from poem.dtypes import Dtype
from poem.errors import CheckpointError
from poem.importer import plan_import
from tests.poem.artifact.objects import left_in, made, tensor_object
from tests.poem.checkpoint.files import bf16, write_checkpoint
from tests.poem.importer.fakes import package, pairs, weight

ROOT = Path(__file__).parents[3]


# -- publishing --------------------------------------------------------------------------------------
def test_a_failing_object_leaves_nothing_and_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    file = tmp_path / "x.zt"
    file.write_bytes(b"before")

    def fails() -> Object:
        raise CheckpointError("import.overflow", "too large")

    with pytest.raises(CheckpointError, match="too large"):
        publish(file, {"a": tensor_object(made("f32")), "b": fails}, {})
    assert left_in(tmp_path) == ["x.zt"]
    assert file.read_bytes() == b"before"


def test_a_failure_in_the_middle_of_a_weight_leaves_nothing(tmp_path: Path) -> None:
    def chunks() -> Any:
        yield np.zeros(64, np.float32)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path / "x.zt", {"a": lambda: object_of(Dtype("f32"), (128,), Dtype("f32").planes((128,)), chunks())}, {})
    assert left_in(tmp_path) == []


def test_the_file_of_a_dead_import_is_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".x.zt.123.abcd.partial").write_bytes(b"half")
    (tmp_path / ".y.zt.123.abcd.partial").write_bytes(b"another target's")
    publish(tmp_path / "x.zt", {"a": tensor_object(made("f32"))}, {})
    assert left_in(tmp_path) == [".y.zt.123.abcd.partial", "x.zt"]


def test_a_second_import_of_one_target_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    file = tmp_path / "x.zt"

    def nested() -> Object:
        with pytest.raises(CheckpointError) as caught:
            publish(file, {"a": tensor_object(made("f32"))}, {})
        assert caught.value.code == "import.busy"
        return tensor_object(made("f32"))()

    publish(file, {"a": nested}, {})
    assert left_in(tmp_path) == ["x.zt"]


def test_the_lock_of_an_import_that_ends_meanwhile_is_not_taken_for_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the lock's file and locking it, who held it may remove it, and a third may make another."""
    file, flock = tmp_path / "x.zt", fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        (tmp_path / ".x.zt.lock").unlink()
        (tmp_path / ".x.zt.lock").touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(CheckpointError) as caught:
        publish(file, {"a": tensor_object(made("f32"))}, {})
    assert caught.value.code == "import.busy"
    assert left_in(tmp_path) == [".x.zt.lock"]


def test_a_disk_that_fills_up_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """The system's own limit on the size of a file stands for a full disk: writing fails half-way with an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(CheckpointError) as caught:
            publish(tmp_path / "x.zt", {f"w.{i}": tensor_object(made("f32", (1000, 100 + i))) for i in range(8)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.code == "import.disk-full"
    assert caught.value.file == str(tmp_path / "x.zt")
    assert left_in(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_no_space_left_on_the_device_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that gets ENOSPC from the system, as the wheel reports it."""

    class Full:
        def __init__(self, path: str) -> None:
            Path(path).write_bytes(b"half")

        def set_attributes(self, attributes: dict[str, str]) -> None:
            with open("/dev/full", "wb", buffering=0) as device:
                try:
                    device.write(b"x")
                except OSError as fault:
                    raise OSError(f"{fault.strerror} (os error {fault.errno})") from None

        def abandon(self) -> None:
            pass

    monkeypatch.setattr(ztensor, "Writer", Full)
    with pytest.raises(CheckpointError) as caught:
        publish(tmp_path / "x.zt", {}, {})
    assert caught.value.code == "import.disk-full"
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("target", ["absent/x.zt", "."])
def test_a_destination_that_cannot_be_written_is_refused_first(target: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        publish(tmp_path / target, {}, {})
    assert caught.value.code == "import.destination"


# -- whole imports -------------------------------------------------------------------------------------
WEIGHTS = {"embed": weight([64, 32], aliases=["head"]), "layers.2.w": weight([40, 64], "f32"), "layers.10.w": weight([40, 64], "u4g64")}
READ = pairs(("tok", "embed"), ("l.{l}", "layers.{l}.w"), ("lm_head", "head"))
HELD = {"tok": bf16(64, 32, seed=1), "l.2": bf16(40, 64, seed=2), "l.10": bf16(40, 64, seed=3)}
TOKENIZER = {"model": {"vocab": {"</s>": 0}}, "added_tokens": []}


def planned(folder: Path, held: dict[str, Any] | None = None) -> Any:
    checkpoint = open_checkpoint(write_checkpoint(folder, HELD if held is None else held, {"hidden": 32}, tokenizer=TOKENIZER))
    return plan_import(checkpoint, [package(WEIGHTS, READ)])


def test_every_weight_of_a_plan_is_in_the_file_bit_for_bit(tmp_path: Path) -> None:
    plan, file = planned(tmp_path / "c"), tmp_path / "x.zt"
    steps: list[tuple[int, int, str]] = []
    size = write_artifact(file, plan, lambda *step: steps.append(step))
    assert size == file.stat().st_size
    container = Container(file)
    assert container.weights() == sorted(WEIGHTS)
    for name, tensor in plan.weights.items():
        found = container.tensor(name, tensor.dtype, tensor.shape)
        for path, plane in tensor.planes.items():
            assert np.array_equal(found.planes[path].reshape(-1).view(np.uint8), np.ascontiguousarray(plane).reshape(-1).view(np.uint8)), (
                name,
                path,
            )
    assert container.side_files() == ["tokenizer.json"]
    assert json.loads(container.side_file("tokenizer.json")) == TOKENIZER
    assert container.attributes == {
        "poem.format": "1", "poem.deployment": "toy-bf16-kv-bf16", "poem.package/name": "toy", "poem.package/api": "1",
        "poem.package/files/toy.poem": "# a toy", "poem.source/repo": "c", "poem.source/format": "hub",
        "poem.config/config.json": '{"hidden": 32}',
    }  # fmt: skip
    assert [name for _, _, name in steps][:: len(steps) - 1] == ["embed", "poem.file/tokenizer.json"]
    assert max(done for done, _, name in steps if not name.startswith("poem.file/")) == steps[0][1] == plan.nbytes


def test_the_same_import_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        write_artifact(tmp_path / f"{name}.zt", planned(tmp_path / "c"))
        digests.add(hashlib.sha256((tmp_path / f"{name}.zt").read_bytes()).hexdigest())
    assert len(digests) == 1


def test_a_check_that_needs_the_data_aborts_the_write(tmp_path: Path) -> None:
    other = HELD["tok"].copy()
    other[0, 0] = 9
    plan = planned(tmp_path / "c", HELD | {"lm_head": other})
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError) as caught:
        write_artifact(tmp_path / "out" / "x.zt", plan)
    assert caught.value.code == "import.tied-differs"
    assert left_in(tmp_path / "out") == []


def in_a_process(program: str, *arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    text = textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", text, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, check=False, **more)


SETUP = """
import signal, sys, threading, time
from pathlib import Path
import numpy as np
from poem.checkpoint import open_checkpoint
from poem.importer import plan_import
from poem.artifact import write_artifact
from tests.poem.importer.fakes import package, pairs, weight
"""


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    held = {f"l.{i}": np.full((256, 1024), i, np.float32) for i in range(40)}
    folder = write_checkpoint(tmp_path / "c", held)
    (tmp_path / "out").mkdir()
    program = (
        SETUP
        + """
weights = {f"w.{i}": weight((256, 1024), "f32") for i in range(40)}
plan = plan_import(open_checkpoint(sys.argv[1]), [package(weights, pairs(("l.{i}", "w.{i}")))])
def progress(done, total, name):
    if name == "w.3":
        partial = list(Path(sys.argv[2]).glob(".x.zt.*.partial"))
        assert partial and partial[0].stat().st_size > 0, "nothing was being written"
        signal.raise_signal(signal.SIGINT)
try:
    write_artifact(Path(sys.argv[2]) / "x.zt", plan, progress)
except KeyboardInterrupt:
    sys.exit(7)
"""
    )
    done = in_a_process(program, folder, tmp_path / "out")
    assert done.returncode == 7, done.stderr
    assert left_in(tmp_path / "out") == []


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of resident memory from /proc")
def test_an_import_holds_little_more_than_its_largest_tensor(tmp_path: Path) -> None:
    """480 MB of tensors, the largest of 64 MB: cast, joined, transposed, encoded and copied. What the process holds at most
    (pages of the mapped files included) stays under three times the largest plus 200 MB; all of it at once would not."""
    largest = 64 << 20
    folder = tmp_path / "c"
    folder.mkdir()
    rows = largest // 4096
    shapes = {"big": (rows, 2048)} | {f"l.{i}": (rows // 8, 2048) for i in range(50)}
    header = {}
    at = 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + shape[0] * shape[1] * 2]}
        at += shape[0] * shape[1] * 2
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)  # a sparse file: zeros that take no space
    program = (
        SETUP
        + """
from poem.formats.declared import Src, Transpose
quantised = {0: "u4g64", 4: "nvfp4"}
weights = {"big": weight((2048, ROWS), "f32")} | {f"w.{i}": weight((ROWS // 8, 2048), quantised.get(i % 8, "bf16")) for i in range(48)}
weights["joined"] = weight((ROWS // 4, 2048), "bf16")
read = pairs((Transpose(Src("big"), (1, 0)), "big"), ("l.{i}", "w.{i}"), (["l.48", "l.49"], "joined"))
plan = plan_import(open_checkpoint(sys.argv[1]), [package(weights, read)])
write_artifact(sys.argv[2], plan)
status = Path("/proc/self/status").read_text()  # getrusage would count the pytest process this one was forked from
print(int(status.split("VmHWM:")[1].split()[0]) * 1024)
"""
    )
    done = in_a_process(program.replace("ROWS", str(rows)), folder, tmp_path / "x.zt")
    assert done.returncode == 0, done.stderr
    peak, bound, all_of_it = int(done.stdout), 3 * largest + 200_000_000, at
    assert peak < bound, f"peak of {peak / 1e6:.0f} MB; at most {bound / 1e6:.0f} MB"
    assert all_of_it > bound, "the test could not fail"
