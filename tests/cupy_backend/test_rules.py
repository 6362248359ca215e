"""Every rule plans what its op says: random examples of each op on the checked emulator, judged against the interpreter's operands."""

import pytest

from conformance.examples import Case, Example, example, judge, session_of
from conformance.strategies import Strategy, strategies
from cupy_backend.emulator import EmulatedDevice, Schedule
from cupy_backend.errors import KernelError
from cupy_backend.plan.rules import RULES
from poem.errors import PoemErrors

SHELVES = ("elemwise", "gather", "sampling")
OTHERS = (
    "linear.matmul",
    "matmul_bias",
    "linear.glu",
    "linear.gelu_tanh",
    "attn.logit_softcap",
    "attn.attend",
    "attn.prefill",
    "attn.kv_append",
    "attn.kv_append_shared",
    "rope_append",
    "add_rmsnorm",
    "rmsnorm_codes",
    "add_rmsnorm_codes",
    "elementwise_codes",
)
# What the rules refuse, and examples may ask for.
REFUSED = {
    "linear.matmul": "no matrix product serves this",
    "matmul_bias": "no matrix product serves this",
    "attn.attend": "no attention kernel serves this",
    "attn.prefill": "no attention kernel serves this",
    "rope_append": "no attention kernel serves this",
    "elemwise.rope": "changes frequencies with the length of a sequence",
    "elemwise.rope_axes": "has this form",
    "gather.embed_weighted": "no gather kernel serves this",
}
RULED = [of for name, of in strategies().items() if name in RULES and (name.partition(".")[0] in SHELVES or name in OTHERS)]


def refusal_of(made: Example, device: EmulatedDevice) -> str:
    """Why an example cannot be planned, or ""."""
    try:
        session_of(made, device)
    except (KernelError, PoemErrors) as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize("strategy", RULED, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("seed", range(2))
def test_examples_agree_with_the_interpreter(strategy: Strategy, seed: int) -> None:
    for number, dtype in enumerate(strategy.dtypes):
        flavour = strategy.flavours[(seed * len(strategy.dtypes) + number) % len(strategy.flavours)]
        made = example(Case(strategy.name, dtype, strategy.weights[seed * 3 % len(strategy.weights)], flavour, seed))
        device = EmulatedDevice(schedule=Schedule("random", "random", seed + 1))
        if strategy.name in REFUSED and (refusal := refusal_of(made, device)):
            assert REFUSED[strategy.name] in refusal
            continue
        outcome = judge(made, session_of(made, device))
        assert not outcome.fault, f"{made.case} with picks {made.picks}: {outcome.fault}, at {outcome.fraction} of the bound"
