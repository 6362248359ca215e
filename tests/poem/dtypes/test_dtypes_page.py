"""Every example of docs/dtypes.md prints what the page says."""

import doctest
from pathlib import Path

from poem.dtypes import Dtype
from poem.dtypes.facts import worst_error

PAGE = Path(__file__).parents[3] / "docs" / "dtypes.md"


def test_the_examples_print_what_the_page_says() -> None:
    text = PAGE.read_text()
    examples = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    assert len(examples.examples) > 20, "the page has lost its examples"
    runner = doctest.DocTestRunner()
    report: list[str] = []
    runner.run(examples, out=report.append)
    assert not runner.failures, "".join(report)


def test_the_table_of_errors_is_what_poem_dtypes_prints() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and line.count("%") == 2]
    assert len(rows) == 7
    for row in rows:
        name = row.split("`")[1]
        assert f"| {100 * worst_error(Dtype(name)):.3g} % |" in row, row
