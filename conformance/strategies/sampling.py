"""Examples of ops.sampling."""

from conformance.strategies.build import Build
from conformance.strategies.record import strategy


@strategy("sampling.argmax", exact=True)
def argmax(b: Build) -> None:
    width, axis = b.pick(8, 1, 100, 1001, 5000), b.pick("tokens", "readouts")
    values = [b.value(width, axis) for _ in range(b.pick(1, 3))]
    b.call("sampling.argmax", values if len(values) > 1 else values[0])
