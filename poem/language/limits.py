"""How much a package may use. Package text is untrusted: each limit has its own error."""

from collections.abc import Callable

from poem.dataclass import dataclass


@dataclass
class Limits:
    """Change the fields of `LIMITS` to allow more or less.

    file_bytes: size of one source file. files: modules of a package.
    load_seconds, phase_seconds: evaluation time of the load, and of each later call.
    depth: frames of the call stack, wrappers included. nesting: of the struct that layout returns.
    expression_depth, block_depth: how deep a text may nest; the host's parser overflows its stack at about three times as much.
    weights, nodes: of a layout and of a trace. visited: containers and fields looked at when a layout is walked.
    name_bytes: of a weight's name.
    memory_bytes: how much the process may grow while a package is evaluated; looked at from time to time.
    address_space: when set, also a hard limit (bytes above what is in use) that stops a single huge allocation. The
        process may then be aborted by the host, so only commands that watch over a child of theirs set it.
    announce: told what is evaluated, as phase, file and seconds between tabs, and "" when that has ended.
    """

    file_bytes: int = 1 << 20
    files: int = 64
    load_seconds: float = 10.0
    phase_seconds: float = 60.0
    depth: int = 400
    nesting: int = 64
    expression_depth: int = 500
    block_depth: int = 100
    weights: int = 200_000
    nodes: int = 500_000
    visited: int = 2_000_000
    name_bytes: int = 1024
    memory_bytes: int = 2 << 30
    address_space: int | None = None
    announce: Callable[[str], object] | None = None


LIMITS = Limits()
