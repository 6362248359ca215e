"""Which files of a folder or of the hub's cache are a checkpoint, and how wrong ones are refused."""

import json
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from poem.checkpoint import hub, open_checkpoint
from poem.errors import CheckpointError
from tests.poem.checkpoint.files import gguf_bytes, safetensors_of, write_checkpoint, write_shards

A, B = {"a": np.arange(4, dtype=np.float32)}, {"b": np.arange(6, dtype=np.float32)}


def refused(source: Path | str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(source)
    return caught.value


# -- folders -------------------------------------------------------------------------------------
def test_a_sharded_set_is_one_checkpoint(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_shards(tmp_path, [A, B]))
    assert checkpoint.names() == ["a", "b"]
    assert checkpoint.tensor("b").decode().tolist() == list(range(6))


def test_model_safetensors_wins_over_an_index_beside_it(tmp_path: Path) -> None:
    write_shards(tmp_path, [A, B])
    (tmp_path / "model.safetensors").write_bytes(safetensors_of({"c": np.ones(1, np.float32)}))
    assert open_checkpoint(tmp_path).names() == ["c"]


def test_safetensors_without_an_index_are_taken_together(tmp_path: Path) -> None:
    for name, tensors in (("x", A), ("y", B)):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors_of(tensors))
    assert open_checkpoint(tmp_path).names() == ["a", "b"]


def test_a_tensor_in_a_shard_that_the_index_omits_is_there(tmp_path: Path) -> None:
    first = "model-00001-of-00001.safetensors"
    assert open_checkpoint(write_shards(tmp_path, [A | B], {"a": first})).names() == ["a", "b"]


def test_one_file_is_a_checkpoint_with_the_configuration_beside_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, A, {"hidden_size": 4})
    checkpoint = open_checkpoint(tmp_path / "model.safetensors")
    assert checkpoint.config_value("hidden_size") == 4


def test_a_gguf_file_takes_no_configuration_from_the_folder_it_lies_in(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, A, {"hidden_size": 4})
    (tmp_path / "x.gguf").write_bytes(gguf_bytes())
    assert open_checkpoint(tmp_path / "x.gguf").config == {}


FIRST = "model-00001-of-00002.safetensors"
BAD_MAPS: dict[str, tuple[object, str]] = {
    "a parent folder": ({"a": "../model.safetensors"}, "no plain file name"),
    "an absolute path": ({"a": "/etc/model.safetensors"}, "no plain file name"),
    "a sub-folder": ({"a": "sub/model.safetensors"}, "no plain file name"),
    "a backslash": ({"a": "..\\model.safetensors"}, "no plain file name"),
    "a NUL": ({"a": "m\0.safetensors"}, "no plain file name"),
    "an empty name": ({"a": ""}, "no plain file name"),
    "a number": ({"a": 7}, "no plain file name"),
    "a pickle": ({"a": "model.bin"}, "no safetensors file"),
    "a shard that is not there": ({"a": "model-00009-of-00002.safetensors"}, "shards are missing"),
    "a tensor that is not there": ({"a": FIRST, "x": FIRST}, "`x` is not in the shards"),
    "a tensor in another shard": ({"a": "model-00002-of-00002.safetensors", "b": FIRST}, "is in another shard"),
    "nothing": ({}, "weight_map"),
    "a list": (["a"], "weight_map"),
}


@pytest.mark.parametrize("name", BAD_MAPS)
def test_an_index_that_names_something_wrong_is_refused(name: str, tmp_path: Path) -> None:
    weight_map, reason = BAD_MAPS[name]
    fault = refused(write_shards(tmp_path, [A, B], weight_map))  # type: ignore[arg-type]
    assert (fault.code, Path(fault.file).name) == ("import.bad-index", "model.safetensors.index.json")
    assert reason in fault.message, fault.render()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "no valid JSON"),
        (b"[]", "should be a JSON object"),
        (b"\xff\xfe", "no valid JSON"),
        (b'{"metadata":{"total_size":NaN},"weight_map":{}}', "NaN"),
        (b'{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}', "'a' is there twice"),
        (b'{"weight_map":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "too deeply"),
    ],
    ids=["cut off", "a list", "not UTF-8", "NaN", "duplicate key", "nested very deeply"],
)
def test_an_index_that_is_no_index_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    fault = refused(tmp_path)
    assert fault.code == "import.bad-index"
    assert reason in fault.message, fault.render()


def test_a_tensor_in_two_shards_is_refused_with_both(tmp_path: Path) -> None:
    fault = refused(write_shards(tmp_path, [A, A | B], {"a": FIRST, "b": "model-00002-of-00002.safetensors"}))
    assert fault.code == "import.bad-index"
    assert "model-00001-of-00002.safetensors and model-00002-of-00002.safetensors" in fault.found


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_a_folder_of_pickles_only_is_refused_unopened(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04cos\nsystem\n")
    for source in (tmp_path, tmp_path / name):
        fault = refused(source)
        assert fault.code == "import.pickle"
        assert "safetensors" in fault.hint


def test_two_gguf_files_ask_which_one(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(gguf_bytes())
    fault = refused(tmp_path)
    assert "a.gguf, b.gguf" in fault.found


def test_nothing_to_read_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("x")
    fault = refused(tmp_path)
    assert fault.code == "import.not-found"
    assert "model.safetensors" in fault.expected
    assert "readme.md" in fault.found
    assert refused(tmp_path / "absent").code == "import.not-found"
    assert refused(tmp_path / "readme.md").found == ".md"
    (tmp_path / "model.zt").write_bytes(b"x")
    assert "imported already" in refused(tmp_path / "model.zt").hint
    assert refused(tmp_path / "absent.gguf").code == "import.not-found"


def test_a_pipe_is_no_checkpoint_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert "no regular file" in refused(tmp_path / "model.safetensors").message


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff", b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"])
def test_a_configuration_that_is_no_object_is_refused_with_its_file(content: bytes, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, A)
    (tmp_path / "config.json").write_bytes(content)
    fault = refused(tmp_path)
    assert (fault.code, Path(fault.file).name) == ("import.corrupt", "config.json")


# -- questions of formats --------------------------------------------------------------------------
def test_configuration_values_go_by_dotted_path_and_list_index(tmp_path: Path) -> None:
    config = '{"a": {"b": [1, {"c": "x"}]}, "limit": [0.0, Infinity], "nan": NaN}'
    write_checkpoint(tmp_path, A)
    (tmp_path / "config.json").write_text(config)
    checkpoint = open_checkpoint(tmp_path)
    asked = {path: checkpoint.config_value(path) for path in ("a.b.0", "a.b.1.c", "a.b.2", "a.x", "a.b.-1", "limit", "nan", "a")}
    assert asked == {
        "a.b.0": 1, "a.b.1.c": "x", "a.b.2": None, "a.x": None, "a.b.-1": None, "limit": [0.0, None], "nan": None,
        "a": {"b": [1, {"c": "x"}]},
    }  # fmt: skip


def test_names_shapes_and_words_are_told_as_stored(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, {"m.weight": np.zeros((2, 3), np.float16), "s": np.zeros((), np.int32)}))
    assert checkpoint.has("m.weight")
    assert not checkpoint.has("m")
    assert checkpoint.has_prefix("m.")
    assert not checkpoint.has_prefix("x")
    assert (checkpoint.shape("m.weight"), checkpoint.stored("m.weight")) == ([2, 3], "f16")
    assert (checkpoint.shape("s"), checkpoint.stored("s")) == ([], "i32")
    with pytest.raises(KeyError, match=r"m\.weight"):
        checkpoint.shape("m.wieght")


@pytest.mark.parametrize(
    ("tokenizer", "vocabulary"),
    [
        ({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<s>"}]}, {"a": 0, "b": 1, "<s>": 2}),
        ({"model": {"vocab": [["x", -1.5], ["y", -2.0]]}}, {"x": 0, "y": 1}),
        ({"model": {"vocab": {"a": "zero", "b": 1}}, "added_tokens": ["x", {"content": 3}]}, {"b": 1}),
        ({"model": {"vocab": {"b": 1}}, "added_tokens": 3}, {"b": 1}),
        ({"model": {"vocab": [[["x"], 0.0], ["y", 0.0], []]}}, {"y": 1}),
    ],
)
def test_the_vocabulary_is_read_from_tokenizer_json(tokenizer: dict[str, object], vocabulary: dict[str, int], tmp_path: Path) -> None:
    assert open_checkpoint(write_checkpoint(tmp_path, A, tokenizer=tokenizer)).vocabulary() == vocabulary


# -- the hub ---------------------------------------------------------------------------------------
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, offline."""
    for name in ("HF_HOME", "XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "hub"


def cached(cache: Path, name: str) -> Path:
    """A cached repository with `main`; returns its snapshot folder."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "blobs").mkdir()
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    return snapshot


def test_a_cached_repository_is_opened_by_name_through_its_links(cache: Path) -> None:
    snapshot = cached(cache, "org/name")
    blob = snapshot.parent.parent / "blobs" / "abc"
    blob.write_bytes(safetensors_of(A))
    (snapshot / "model.safetensors").symlink_to(blob)
    checkpoint = open_checkpoint("org/name")
    assert checkpoint.names() == ["a"]
    assert checkpoint.source == {"repo": "org/name", "revision": COMMIT}


def test_a_link_that_leaves_the_repository_is_refused(cache: Path, tmp_path: Path) -> None:
    snapshot = cached(cache, "org/name")
    (tmp_path / "elsewhere.safetensors").write_bytes(safetensors_of(A))
    (snapshot / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    assert "leaves the repository" in refused("org/name").message


def test_offline_a_name_that_is_not_cached_names_the_cache_searched(cache: Path) -> None:
    fault = refused("org/name")
    assert fault.code == "import.not-found"
    assert str(cache) in fault.expected
    assert "HF_HUB_OFFLINE" in fault.message


def test_offline_an_incomplete_snapshot_names_the_missing_shard(cache: Path) -> None:
    snapshot = cached(cache, "org/name")
    write_shards(snapshot, [A, B])
    (snapshot / "model-00002-of-00002.safetensors").unlink()
    fault = refused("org/name")
    assert fault.code == "import.bad-index"
    assert "model-00002-of-00002.safetensors" in fault.expected


@pytest.mark.parametrize("name", ["org/../etc", "../x", "/absent/file", "org/na me", "a/b/c", "noslash", "org/.."])
def test_a_name_that_could_leave_the_cache_is_no_hub_name(name: str, cache: Path) -> None:
    assert not hub.is_hub_name(name)
    assert refused(name).code == "import.not-found"


@pytest.mark.parametrize("commit", ["../../../etc", "a/b", ""])
def test_a_reference_that_points_outside_the_snapshots_finds_nothing(commit: str, cache: Path) -> None:
    snapshot = cached(cache, "org/name")
    (snapshot.parent.parent / "refs" / "main").write_text(commit)
    assert hub.cached_snapshot("org/name") is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HF_HUB_CACHE": "/c"}, "/c"),
        ({"HF_HOME": "/h"}, "/h/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({}, "~/.cache/huggingface/hub"),
    ],
)
def test_the_cache_lies_where_huggingface_hub_keeps_it(environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert hub.cache_folder() == Path(expected).expanduser()


def test_online_only_weights_configuration_and_tokenizer_are_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own client is replaced by one that records what it is asked."""
    asked: dict[str, object] = {}

    def snapshot_download(name: str, **options: object) -> str:
        asked.update(options, name=name)
        write_checkpoint(cached(cache, name), A)
        return str(cache / "models--org--name" / "snapshots" / COMMIT)

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    assert open_checkpoint("org/name").names() == ["a"]
    assert asked["name"] == "org/name"
    assert asked["allow_patterns"] == ["*.safetensors", "*.json", "*.jinja", "merges.txt", "tokenizer.model"]


def test_a_failed_download_says_why_without_a_traceback(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(name: str, **options: object) -> str:
        raise OSError("connection refused\nmore")

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    fault = refused("org/name")
    assert "connection refused" in fault.message
    assert "more" not in fault.message


def test_side_files_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, A, {"x": 1}, tokenizer={"model": {"vocab": {}}})
    (tmp_path / "merges.txt").write_text("a b")
    (tmp_path / "evil.py").write_text("boom")
    checkpoint = open_checkpoint(tmp_path)
    assert list(checkpoint.side_files) == ["config.json", "merges.txt", "tokenizer.json"]
    assert checkpoint.side_files["merges.txt"] == b"a b"
    assert json.loads(checkpoint.side_files["config.json"]) == {"x": 1}
