"""The planted faults are what they say: one text, once in its file, and a package that still stands."""

from pathlib import Path

import pytest

from tests.conformance.planted_faults import FAULTS, Fault

MODELS = Path(__file__).parents[2] / "models"


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_replaces_one_text_of_its_file_and_reports_a_line_of_the_faulty_package(fault: Fault) -> None:
    text = (MODELS / fault.file).read_text()
    assert text.count(fault.old) == 1, f"{fault.old!r} is {text.count(fault.old)} times in {fault.file}"
    assert fault.new != fault.old
    texts = [text.replace(fault.old, fault.new)]
    texts += [path.read_text() for path in MODELS.rglob("*.poem") if path != MODELS / fault.file]
    lines = {line.strip() for text in texts for line in text.splitlines()}
    assert fault.line_text in lines, f"no line reads {fault.line_text!r}"


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 24
