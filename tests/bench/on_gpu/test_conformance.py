"""The stage `conformance` on the emulator, and the device that only notes what there is to compile."""

import pytest

from bench.on_gpu import conformance
from bench.on_gpu.machine import EmulatedMachine
from conformance.strategies import strategies

MACHINE = EmulatedMachine("emu-fast")


def test_a_mini_model_agrees_with_the_interpreter() -> None:
    result = conformance.cases(MACHINE)[0].run()
    assert result["ok"], result
    assert 0 < result["worst"] <= 1


@pytest.mark.parametrize("name", ["elemwise.rmsnorm", "gather.split_rows"])
def test_examples_of_an_op_agree_and_are_counted(name: str) -> None:
    (case,) = (case for case in conformance.per_op_examples(MACHINE) if case.name == name)
    result = case.run()
    assert result["ok"], result
    assert result["judged"] + result["unsupported"] == len(list(conformance.examples(strategies()[name])))


def test_an_op_that_no_kernel_serves_is_no_failure() -> None:
    unserved = [name for name in ("elemwise.hc_mix", "gather.pixels", "linear.moe_route") if name in strategies()]
    results = [conformance.op(MACHINE.device, strategies()[name]) for name in unserved]
    assert all(result["ok"] is None or result["judged"] for result in results)


def test_what_a_mini_launches_is_known_without_running_it() -> None:
    device = conformance.Dry("sm_90a")
    conformance.mini(device, *conformance.MINIS[0])
    kernels = {launch.kernel.partition("<")[0] for launch in device.launches}
    assert {"attention", "product"} <= kernels
