"""The checker is checked: every planted fault is found by `poem-check`, in its layer and at its line."""

import shutil
from pathlib import Path

import pytest

from conformance.check import check
from conformance.options import Options
from conformance.report import Report
from tests.conformance.dense import MINIS
from tests.conformance.planted_faults import FAULTS, Fault

MODELS = Path(__file__).parents[2] / "models"


def checked(fault: Fault, folder: Path, mode: str = "exact") -> Report:
    """Plant a fault in a copy of the packages, beside the same goldens, and check its mini."""
    models = folder / "models"
    shutil.copytree(MODELS, models, ignore=shutil.ignore_patterns("goldens"))
    (models / "goldens").symlink_to(MODELS / "goldens")
    text = (models / fault.file).read_text()
    assert text.count(fault.old) == 1
    (models / fault.file).write_text(text.replace(fault.old, fault.new))
    return check(Options(str(models / f"{MINIS[fault.model]}.poem"), model=fault.model, mode=mode))  # type: ignore[arg-type]


def shown(report: Report) -> str:
    found = [(comparison, fault) for comparison in report.comparisons for fault in comparison.faults]
    lines = [
        f"{comparison.deployment} {comparison.mode}: {fault.place}, {fault.line} {fault.line.text}\n    {fault.sentence}"
        for comparison, fault in found
    ]
    return "\n".join(lines) or "nothing was found"


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_planted_fault_is_found_in_its_layer_at_its_line(fault: Fault, tmp_path: Path) -> None:
    report = checked(fault, tmp_path)
    assert report.exit_code == 1, shown(report)
    for comparison in report.comparisons:
        first = comparison.faults[0]
        assert (first.layer, first.line.text) == (fault.layer, fault.line_text), shown(report)
        assert first.line.file == fault.file or fault.line_text not in fault.new, shown(report)
        assert first.fraction > 1.0


def test_no_fault_is_found_where_none_was_planted() -> None:
    for mini, package in MINIS.items():
        report = check(Options(str(MODELS / f"{package}.poem"), model=mini))
        assert report.verdict == "agrees", shown(report)
        assert {comparison.mode for comparison in report.comparisons} == {"exact", "native"}


def test_native_mode_finds_one_fault_in_five_too(tmp_path: Path) -> None:
    """All of them but changes of eps, which are a few parts in a million and drown in the rounding to bf16."""
    lost = []
    for number, fault in enumerate(FAULTS[::5]):
        if fault.name.startswith("eps"):
            continue
        report = checked(fault, tmp_path / str(number), "native")
        lines = {(first.layer, first.line.text) for comparison in report.comparisons for first in comparison.faults[:1]}
        if report.exit_code != 1 or (fault.layer, fault.line_text) not in lines:
            lost.append(f"{fault.name}: {shown(report)}")
    assert not lost, "\n".join(lost)
