"""The Starlark host: dialect, prelude, and evaluation under limits, with every failure turned into a PoemError."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path

import starlark

from poem.errors import PoemError
from poem.language.builtins import CALLABLES
from poem.language.evaluation import CURRENT, Evaluation
from poem.language.limits import LIMITS

PRELUDE = "@poem"
_PRELUDE_FILES = [  # in this order: what a file names outside functions is there when it is read
    Path(__file__).parent / "prelude" / f"{name}.star"
    for name in ("crossing", "everywhere", "layout", "formats", "caches", "forward", "media")
]
_EXTENSIONS = starlark.LibraryExtension
_OF_PACKAGES = [_EXTENSIONS.StructType, _EXTENSIONS.Map, _EXTENSIONS.Filter, _EXTENSIONS.Partial, _EXTENSIONS.CallStack]
GLOBALS = starlark.Globals.extended_by(_OF_PACKAGES)
# What a package sees without loading it; `dtype`, `ops` and the rest shadow the host's names.
BUILTIN_NAMES = (
    "print", "dtype", "compute", "f32", "powf32", "expf", "sqrt", "exp", "prime_after", "numpy_integers",
    "linear", "llama3", "yarn", "longrope",
    "model", "deployment", "published", "template", "tokenizer",
    "weight",
    "format", "src", "constant", "fill", "concat", "stack", "has", "has_prefix", "shape", "stored", "text_attribute",
    "attribute_value", "config_value", "config", "attribute",
    "ops", "output",
    "fact", "merge", "switch", "conv", "grid_rule", "segment", "group_block_diagonal", "unmasked", "reference_self_only",
    "generation", "reading", "port", "positions", "latent_space", "schedule", "canvas",
)  # fmt: skip
UNIVERSE = (
    "abs", "all", "any", "bool", "chr", "dict", "dir", "enumerate", "fail", "float", "getattr", "hasattr", "hash", "int", "len",
    "list", "max", "min", "ord", "range", "repr", "reversed", "sorted", "str", "tuple", "type", "zip", "struct", "map", "filter",
    "partial", "True", "False", "None",
)  # fmt: skip


def _dialect(positional_only: bool = False) -> starlark.Dialect:
    dialect = starlark.Dialect.extended()
    dialect.enable_f_strings = True
    dialect.enable_positional_only_arguments = positional_only
    return dialect


DIALECT = _dialect()


@lru_cache(maxsize=256)
def parse(file: str, text: str) -> starlark.AstModule:
    """The parsed text; a parse may be evaluated any number of times. Raises the host's StarlarkError."""
    return starlark.parse(file, text, DIALECT)


@cache
def prelude() -> starlark.FrozenModule:
    """The builtins, evaluated once per process."""
    module = starlark.Module()
    for name, function in CALLABLES.items():
        module.add_callable(name, function)
    text = "\n".join(file.read_text(encoding="utf-8") for file in _PRELUDE_FILES)
    globals = starlark.Globals.extended_by([*_OF_PACKAGES, _EXTENSIONS.Json])
    starlark.eval(module, starlark.parse(PRELUDE, text, _dialect(positional_only=True)), globals)
    return module.freeze()


_INJECTION = f"load({', '.join(repr(word) for word in (PRELUDE, *BUILTIN_NAMES))})".replace("'", '"')


def user_module() -> starlark.Module:
    """A fresh module in which every builtin is defined; user definitions may shadow them."""
    module = starlark.Module()
    starlark.eval(module, parse(PRELUDE, _INJECTION), GLOBALS, starlark.FileLoader(lambda _: prelude()))
    return module


def loader(modules: Mapping[str, starlark.FrozenModule]) -> starlark.FileLoader:
    """A loader of evaluated modules by id; the prelude is `@poem`."""

    def load(name: str) -> starlark.FrozenModule:
        return prelude() if name == PRELUDE else modules[name]

    return starlark.FileLoader(load)


def run(
    evaluation: Evaluation,
    module: starlark.Module,
    ast: starlark.AstModule,
    modules: Mapping[str, starlark.FrozenModule],
    seconds: float,
) -> None:
    """Evaluate `ast` in `module`. Raises PoemError and nothing else, but for Ctrl-C."""
    options = starlark.EvalOptions(check_cancelled=_watch(evaluation, seconds), max_callstack_size=LIMITS.depth)
    token = CURRENT.set(evaluation)
    try:
        with _bounded(evaluation, seconds):
            starlark.eval_with(options, module, ast, GLOBALS, loader(modules))
    except PoemError:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as fault:  # the host's panics derive from BaseException
        error = refusal(evaluation, fault)
        raise error from error.__cause__
    finally:
        CURRENT.reset(token)


def refusal(evaluation: Evaluation, fault: BaseException) -> PoemError:
    """The PoemError for whatever stopped an evaluation."""
    from poem.language.host_errors import translate  # its patterns are only compiled for a package that fails

    if isinstance(evaluation.interruption, (KeyboardInterrupt, SystemExit)):
        raise evaluation.interruption
    if evaluation.interruption is not None:
        return translate(evaluation, str(fault), internal=evaluation.interruption)
    if evaluation.fault is not None:
        return evaluation.fault
    if isinstance(fault, starlark.StarlarkError):
        return translate(evaluation, str(fault))
    if "out of memory" in str(fault) or "AlignedSize" in str(fault):  # the host's words for what no memory holds, and no list of its
        return evaluation.error(
            "budget.memory", "the package needs more memory than it may use", hint="does a list or dict grow without end?"
        )
    error = evaluation.error("internal.error", f"the evaluation failed: {type(fault).__name__}: {str(fault)[:200]}")
    error.__cause__ = fault
    return error


# -- limits ------------------------------------------------------------------------------------------------------------
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def _memory(column: int) -> int:
    """Bytes of address space (0) or of resident memory (1) of this process; 0 where the platform does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[column]) * _PAGE
    except OSError:
        return 0


def _watch(evaluation: Evaluation, seconds: float) -> Callable[[], bool]:
    """Called by the host about every thousand instructions: refuses what takes too long or grows too much."""
    deadline = time.monotonic() + seconds
    look = time.monotonic() + 0.05
    before = 0

    def check() -> bool:
        nonlocal look, before
        now = time.monotonic()
        if now < look:
            return False
        look = now + 0.05
        if now > deadline:
            raise evaluation.error("budget.time", f"the package ran for more than {seconds:g} s", hint="is there a loop without end?")
        resident = _memory(1)
        if before == 0:
            before = resident
        if resident - before > LIMITS.memory_bytes:
            raise evaluation.error(
                "budget.memory", f"the package needs more than {LIMITS.memory_bytes >> 20} MiB of memory",
                hint="does a list or dict grow without end?",
            )  # fmt: skip
        return False

    return check


@contextmanager
def _bounded(evaluation: Evaluation, seconds: float) -> Iterator[None]:
    """While LIMITS.address_space is set: no allocation may take the address space further than that.

    The host then panics or aborts, and says so on standard error, which is of no use to anybody: that is closed meanwhile.
    """
    if LIMITS.address_space is None:
        yield
        return
    import resource

    if LIMITS.announce is not None:
        LIMITS.announce(f"{evaluation.phase}\t{next(iter(evaluation.files), '')}\t{seconds}")
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = _memory(0) + LIMITS.address_space
    if before[1] != resource.RLIM_INFINITY:
        limit = min(limit, before[1])
    sys.stderr.flush()
    told, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    ours, sys.stderr = sys.stderr, os.fdopen(os.dup(told), "w", buffering=1)
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        os.dup2(told, 2)
        sys.stderr.close()
        sys.stderr = ours
        os.close(told)
        os.close(nowhere)
        if LIMITS.announce is not None:
            LIMITS.announce("")
