"""`poem plan`: launches of a pass, in text and JSON, and what is refused."""

import json
from pathlib import Path

import pytest

from poem.cli.main import main

LLAMA = str(Path(__file__).parents[3] / "models" / "llama_3.poem")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plan", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize(("batch", "length"), [("1", "512"), ("1", "32768"), ("8", "4096"), ("64", "1024")])
def test_a_decode_step_of_llama_is_at_most_eight_launches_a_layer_and_each_has_its_bytes(
    batch: str, length: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--batch", batch, "--length", length)
    code, out, _ = run(capsys, LLAMA, "--deployment", "llama31-8b-bf16-kv-bf16", "--arch", "sm_90a", *sizes, "--json")
    data = json.loads(out)
    assert code == 0
    assert data["launches_per_layer"] <= 8
    assert all(launch["read"] > 0 and launch["written"] > 0 for launch in data["launches"])
    nodes = sorted({node for launch in data["launches"] for node in launch["nodes"]})
    assert nodes == list(range(4 + 14 * 32))


def test_a_decode_step_reads_every_weight_once_and_every_cell_once(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, LLAMA, "--deployment", "llama31-8b-bf16-kv-bf16", "--batch", "32", "--length", "2048", "--json")
    data = json.loads(out)
    layer = 2 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    cells = 32 * 2048 * 2 * 1024 * 2
    least = 32 * (layer + cells) + 2 * 128256 * 4096
    assert least <= data["total"]["read"] <= 1.02 * least
    assert data["total"]["floor_seconds"] >= least / 4.3e12


def test_the_text_names_kernels_nodes_lines_and_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, LLAMA, "--deployment", "llama31-mini-bf16-kv-bf16", "--batch", "2")
    assert code == 0
    assert "llama31-mini-bf16-kv-bf16 on sm_90a: 2 rows of 2 sequences" in out
    assert "add_rmsnorm" in out
    assert "llama_3.poem:166" in out
    assert "us on an H200" in out


def test_a_deployment_without_kernels_is_refused_at_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, LLAMA, "--deployment", "llama31-mini-f32-kv-f32")
    assert code == 2
    assert "lib/blocks.poem:8: plan: ops.attn.attend" in err
    assert "[kernel.unsupported]" in err


def test_sizes_below_one_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, LLAMA, "--batch", "0")
    assert (code, "--batch is below 1" in err) == (2, True)


def test_warpgroups_multiply_many_rows_only_where_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    prefill = (LLAMA, "--deployment", "llama31-mini-bf16-kv-bf16", "--tokens", "200", "--json")
    found = {}
    for words in ((), ("--warpgroups",)):
        code, out, _ = run(capsys, *prefill, *words)
        assert code == 0
        found[words] = {launch["source"] for launch in json.loads(out)["launches"]}
    assert found["--warpgroups",] - found[()] == {"linear_warpgroups.cu"}
    with pytest.raises(SystemExit, match="2"):
        run(capsys, *prefill, "--warpgroups", "--batch-invariant")
