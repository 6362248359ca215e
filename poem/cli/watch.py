"""Runs a command in a child process and watches over it.

A package is a text that anybody may have written. One operation of it, `[0] * 1000000000`, can neither be interrupted nor
refused by its host: the process is aborted, or the machine runs out of memory. So the `poem` command does its work in a
forked child whose evaluations have a limit of memory, and the parent turns a violent end into an error and exit code 2.
Forking before anything is imported costs about a millisecond.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence

from poem.errors import PackageError

ADDRESS_SPACE = 4 << 30
GRACE_SECONDS = 5.0  # beyond an evaluation's own limit, which is checked between operations
CANNOT_RUN = 2
Command = Callable[[Sequence[str]], int]


def watched(command: Command, argv: Sequence[str]) -> int:
    """The exit code of `command(argv)`, run in a child where the platform can fork."""
    if not hasattr(os, "fork"):
        return command(argv)
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _work(command, argv, writing)
    os.close(writing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child gets it too, and ends in order
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    doing, status = _wait(child, reading)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    return _report(doing, -code, "--json" in argv)


def _work(command: Command, argv: Sequence[str], writing: int) -> None:
    """The child: never returns."""
    code = CANNOT_RUN
    try:
        from poem.language.limits import LIMITS

        LIMITS.address_space = ADDRESS_SPACE
        LIMITS.announce = lambda doing: os.write(writing, f"{doing}\n".encode())
        code = command(argv)
    except KeyboardInterrupt:  # before the command was there to say what it leaves behind
        sys.stderr.write("poem: interrupted\n")
    except SystemExit as exit:  # argparse
        code = exit.code if isinstance(exit.code, int) else CANNOT_RUN
    except BrokenPipeError:
        pass
    except BaseException:  # a fault of ours, not of the user's: it must be seen
        import traceback

        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (BrokenPipeError, ValueError):
            pass
        except OSError as fault:  # what was printed is not all there
            os.write(2, f"poem: {fault.strerror}\n".encode())
            code = CANNOT_RUN
        os._exit(code if isinstance(code, int) else 0)


def _wait(child: int, reading: int) -> tuple[str, int]:
    """What was being evaluated when the child ended ("" for nothing), and its status."""
    doing, text, deadline = "", b"", None
    while True:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([reading], [], [], timeout)
        if not ready:
            os.kill(child, signal.SIGKILL)
            return f"{doing}\ttime", os.waitpid(child, 0)[1]
        received = os.read(reading, 65536)
        if not received:
            os.close(reading)
            return doing, os.waitpid(child, 0)[1]
        text += received
        *lines, text = text.split(b"\n")
        if lines:
            doing = lines[-1].decode()
            deadline = time.monotonic() + float(doing.split("\t")[2]) + GRACE_SECONDS if doing else None


def _report(doing: str, number: int, as_json: bool) -> int:
    """Says why the child ended, and gives the exit code."""
    name = signal.Signals(number).name
    if not doing:
        sys.stderr.write(f"poem: the command was ended by {name}\n")
        return 128 + number
    phase, file, seconds, *late = doing.split("\t")
    if late:
        code, message = "budget.time", f"the package ran for more than {float(seconds) + GRACE_SECONDS:g} s inside one operation"
    elif number == signal.SIGSEGV:
        code, message = "budget.depth", "the package nests data deeper than can be handled"
    else:
        code, message = (
            "budget.memory",
            f"the package needs more memory than it may use ({ADDRESS_SPACE >> 30} GiB), and was ended by {name}",
        )
    error = PackageError(code, message, phase=phase, file=file, hint="look for an operation on something huge, like [0] * 1000000000")
    if as_json:
        print(json.dumps({"error": error.as_json()}, indent=2))
    print(error.render(), file=sys.stderr)
    return CANNOT_RUN
