"""Work shared with forked processes: every work is done once, in any of them, and faults come out as if it were done here."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from conformance.shared import shared

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is shared where nothing forks")


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)


def noted(folder: Path, number: int) -> tuple[int, int]:
    """Takes a while, and leaves a file that says who worked on what."""
    time.sleep(0.01)
    (folder / f"{number}.{os.getpid()}").touch()
    return number, os.getpid()


@pytest.mark.parametrize("processes", [0, 1, 3, 50])
def test_results_come_in_order_and_each_work_is_done_once(tmp_path: Path, processes: int) -> None:
    found = shared([partial(noted, tmp_path, number) for number in range(20)], processes)()
    assert [number for number, _ in found] == list(range(20))
    assert len(list(tmp_path.iterdir())) == 20
    assert processes or {worker for _, worker in found} == {os.getpid()}


def test_others_start_before_this_process_joins_in(tmp_path: Path) -> None:
    outcome = shared([partial(noted, tmp_path, number) for number in range(3)], 1)
    deadline = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert os.getpid() not in {worker for _, worker in outcome()}


def test_no_work_is_no_result() -> None:
    assert shared([], 3)() == []


def failing(number: int) -> int:
    if number >= 3:
        time.sleep(0.02 if number == 3 else 0)  # the others fail earlier
        raise ValueError(f"work {number} cannot be done")
    return number


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_of_several_faults_that_of_the_first_work_is_raised_whoever_met_it(processes: int) -> None:
    for _ in range(5):
        with pytest.raises(ValueError, match="work 3 cannot be done"):
            shared([partial(failing, number) for number in range(8)], processes)()


def dying(parent: int, number: int) -> int:
    if os.getpid() != parent:
        os._exit(7)
    return number


@pytest.mark.parametrize("lost", [dying, lambda parent, number: (lambda: number) if os.getpid() != parent else number])
def test_what_a_process_did_not_hand_over_is_done_here(lost: Callable[[int, int], object]) -> None:
    """It died on the way, or its result cannot be sent."""
    assert shared([partial(lost, os.getpid(), number) for number in range(8)], 2)() == list(range(8))
