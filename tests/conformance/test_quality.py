"""`poem bench quality`: numbers that are computed by hand here, files that do not belong together, the command."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.quality import TEXT, compare_files, log_probabilities
from poem.artifact import open_artifact, write_artifact
from poem.batch import Chunk
from poem.checkpoint import open_checkpoint
from poem.cli.main import main
from poem.errors import UsageError
from poem.importer import plan_import
from poem.package import load_package

MODELS = Path(__file__).parents[2] / "models"
GOLDEN = MODELS / "goldens" / "llama_3" / "llama31-mini"
DEPLOYMENTS = ["llama31-mini-bf16-kv-bf16", "llama31-mini-nvfp4-kv-e4m3"]
MARKERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>"]  # that the package asks for
WORDS = {f"w{i}": i for i in range(251)} | {marker: 251 + i for i, marker in enumerate(MARKERS)}


def tokenizer(words: dict[str, int]) -> str:
    """A tokenizer whose tokens are the words between spaces."""
    added = [
        {
            "id": words[marker],
            "content": marker,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for marker in MARKERS
    ]
    model = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                       "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None, "model": model})  # fmt: skip


def imported(folder: Path, deployment: str, words: dict[str, int] = WORDS) -> str:
    """The mini with a tokenizer, imported into a deployment."""
    source = folder / f"source-{deployment}"
    source.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (source / name).write_bytes((GOLDEN / name).read_bytes())
    (source / "tokenizer.json").write_text(tokenizer(words))
    plan = plan_import(open_checkpoint(source), [load_package(MODELS / "llama_3.poem")], deployment=deployment)
    write_artifact(folder / f"{deployment}.zt", plan)
    return str(folder / f"{deployment}.zt")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [imported(tmp_path_factory.mktemp("quality"), deployment) for deployment in DEPLOYMENTS]


IDS = [int(id) for id in np.random.default_rng(0).integers(1, 250, 60)]
STORY = " ".join(f"w{id}" for id in IDS)


def probabilities(file: str) -> np.ndarray:
    """[59, 256]: what a file's model gives for each next token, in one pass."""
    from interp import Session

    artifact = open_artifact(file)
    session = Session(artifact.graph(), artifact.weights, setting="fast")
    logits = session.run([Chunk(session.add_sequence(), IDS[:-1], readouts="all")])["logits"].astype(np.float64)
    weights = np.exp(logits)
    return weights / weights.sum(-1, keepdims=True)


def test_the_numbers_are_those_of_their_definitions(files: list[str]) -> None:
    plain, quantised = compare_files(files, STORY, limit=1000)
    p, q = (probabilities(file) for file in files)
    for found, probability, file in ((plain, p, files[0]), (quantised, q, files[1])):
        surprise = -np.log(probability[np.arange(59), IDS[1:]]).mean()
        assert found.tokens == 59
        assert found.perplexity == pytest.approx(np.exp(surprise), rel=1e-3)
        assert found.bytes == Path(file).stat().st_size
        assert found.tokens_per_second > 0
    assert (plain.agreement, plain.divergence) == (None, None)
    assert quantised.agreement == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean(), abs=1 / 59)
    assert quantised.divergence == pytest.approx((p * np.log(p / q)).sum(-1).mean(), rel=1e-2)


def test_bits_a_weight_count_codes_scales_and_what_stays_in_floats(files: list[str]) -> None:
    plain, quantised = compare_files(files, STORY, limit=20)
    matrices = 2 * (128 * 64 + 2 * 64 * 64 + 64 * 128 + 3 * 64 * 128)
    others = 2 * 256 * 64 + 5 * 64
    assert plain.bits == 16
    assert quantised.bits == pytest.approx((4.5 * matrices + 12 * 32 + 16 * others) / (matrices + others), rel=1e-9)


def test_a_file_beside_itself_agrees_everywhere(files: list[str]) -> None:
    found = compare_files(files[1:], STORY, limit=1000)
    assert found[0].agreement is None
    again = compare_files(files, STORY, files[0], limit=1000)
    assert again[0].agreement is None
    assert again[1].perplexity == found[0].perplexity


def test_files_with_other_tokens_are_refused(files: list[str], tmp_path: Path) -> None:
    other = imported(tmp_path, DEPLOYMENTS[0], WORDS | {f"w{i}": 250 - i for i in range(251)})
    with pytest.raises(UsageError) as refused:
        compare_files([files[0], other], STORY, limit=1000)
    assert refused.value.code == "bench.tokenizer"


@pytest.mark.parametrize(("text", "limit"), [("w1", 1000), (STORY, 1), ("", 1000)])
def test_a_text_without_a_token_to_predict_is_refused(files: list[str], text: str, limit: int) -> None:
    with pytest.raises(UsageError) as refused:
        compare_files(files, text, limit=limit)
    assert refused.value.code == "bench.text"


def test_log_probabilities_survive_large_logits() -> None:
    found = log_probabilities(np.array([[1e4, 0.0], [0.0, 0.0]], np.float32))
    np.testing.assert_allclose(found, [[0.0, -1e4], [-np.log(2), -np.log(2)]])


def test_the_shipped_text_is_a_few_hundred_words() -> None:
    assert 400 < len(TEXT.read_text().split()) < 600


def test_the_command_prints_a_table_and_json(files: list[str], tmp_path: Path, capsys: Any) -> None:
    story = tmp_path / "story.txt"
    story.write_text(STORY)
    assert main(["bench", "quality", *files, "--text", str(story)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["file", "size"]
    assert "reference" in lines[1]
    assert lines[3] == f"59 tokens predicted; top-1 and KL against {files[0]}"
    assert main(["bench", "quality", *files, "--text", str(story), "--against", files[1], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["reference"] == files[1]
    assert [entry["agreement"] is None for entry in found["files"]] == [False, True]


@pytest.mark.parametrize(("words", "code"), [
    (["model.gguf"], "bench.file"), (["no-such.zt"], ""), (["x.zt", "--text", "no-such.txt"], "bench.text"),
])  # fmt: skip
def test_what_cannot_be_measured_exits_with_2_and_a_code(words: list[str], code: str, capsys: Any) -> None:
    assert main(["bench", "quality", *words]) == 2
    err = capsys.readouterr().err
    assert f"[{code}" in err
    assert "Traceback" not in err
