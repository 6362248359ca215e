"""`poem dtypes` lists the formats and explains one."""

import json

import pytest

from poem.cli.main import main
from poem.dtypes import Dtype
from poem.dtypes.facts import LISTED


def test_the_list_names_every_dtype_with_its_bits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dtypes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0]: line for line in lines[1 : 1 + len(LISTED)]}
    assert set(listed) == set(LISTED)
    assert listed["nvfp4"].split()[1] == "4.5"
    assert listed["e4m3tile128a8"].endswith("weight, with 8-bit activations")


def test_one_dtype_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dtypes", "nvfp4"]) == 0
    text = capsys.readouterr().out
    for expected in ("g16_e2m1_gt_e4m3_f32_n_n", "e2m1 * e4m3 * f32", "16 consecutive elements", "gain.gain", "18432 bytes", "17.6 %"):
        assert expected in text


@pytest.mark.parametrize("name", LISTED)
def test_json_holds_the_same_facts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dtypes", name, "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["name"] == name
    assert Dtype(one["term"] + ("+" + one["activations"] if one["activations"] else "")) is Dtype(name)
    planes = Dtype(name).planes(tuple(one["shape"]))
    assert one["planes"] == [{"path": p.path, "leaf": p.leaf, "shape": list(p.shape), "nbytes": p.nbytes} for p in planes]


def test_a_term_of_ones_own_is_explained_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dtypes", "g48_u4_f16_b_f16"]) == 0
    assert "48 consecutive elements" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "says"), [("nvpf4", "did you mean `nvfp4`"), ("u4g32k", "reserved for GGUF's Q4_K"), ("g64_u4", "a term is missing")]
)
def test_an_unknown_name_is_refused_with_what_to_try(name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dtypes", name]) == 2
    assert says in capsys.readouterr().err
