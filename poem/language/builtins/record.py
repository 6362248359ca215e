"""The registry of builtins: each is a Python function whose signature gives parameters, kinds and defaults."""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps
from typing import Any

import starlark

from poem.dataclass import dataclass
from poem.errors import PoemError
from poem.language.binding import Parameter, bind, parameters_of
from poem.language.crossing import unpacked
from poem.language.evaluation import CURRENT, PHASES, Call, Evaluation, Phase
from poem.language.values import kind_of
from poem.ops.record import OpRefusal


@dataclass(frozen=True)
class Builtin:
    """One builtin. `shown` is its name as packages write it; `phases` are those it belongs to."""

    name: str
    shown: str
    function: Callable[..., Any]
    phases: tuple[Phase, ...]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        return parameters_of(self.function)

    def call(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Check phase and arguments, and run it. Raises PackageError at the user's line."""
        check_phase(call, self.phases)
        of = []
        if self.name.startswith("expression."):
            of, args = [args[0]], args[1:]
        bound = bind(self.shown, self.parameters[len(of) :], args, kwargs, call.error, kind_of)
        by_position = [bound.pop(parameter.name) for parameter in self.parameters[len(of) :] if parameter.by == "position"]
        try:
            return self.function(call, *of, *by_position, **bound)
        except OpRefusal as refusal:  # from the scaling values, which ops share
            message = f"{self.shown}(): {refusal.parameter} {refusal.message}"
            raise call.error(refusal.code, message, expected=refusal.expected, found=refusal.found, hint=refusal.hint) from None


def check_phase(call: Call, phases: Sequence[Phase]) -> None:
    """Refuse a call at another phase (`phase.wrong`)."""
    now = call.evaluation.phase
    if now not in phases:
        place = f" ({call.where[-1].file}:{call.where[-1].line})" if call.where else ""
        home = " and ".join(phases)
        raise call.error("phase.wrong", f"{call.name}() belongs to {home}; this call runs at {now}{place}", expected=home, found=now)


BUILTINS: dict[str, Builtin] = {}


def builtin(*phases: Phase, name: str = "", shown: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a builtin of these phases (none: of every phase)."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        full = name or function.__name__
        BUILTINS[full] = Builtin(full, shown or full, function, phases or PHASES)
        return function

    return register


ENTRIES: dict[str, Callable[..., Any]] = {}


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function that the prelude calls as `_py_<name>`; its first argument is the current evaluation.

    A refusal is kept in the evaluation, because the host passes on nothing but its text.
    """

    @wraps(function)
    def run(*args: Any) -> Any:
        evaluation = CURRENT.get()
        try:
            return function(evaluation, *args)
        except PoemError as fault:
            evaluation.fault = fault
            raise
        except BaseException as cause:
            evaluation.interruption = cause
            raise

    ENTRIES[f"_py_{function.__name__}"] = run
    return function


def asked(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `entry`, for a function whose arguments come from a package: they are packed (see crossing.py)."""

    @entry
    @wraps(function)
    def run(evaluation: Evaluation, text: str, handles: list[Any]) -> Any:
        return function(evaluation, *[unpacked(evaluation, item, handles) for item in json.loads(text)])

    return function


@asked
def call(evaluation: Evaluation, name: str, stack: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Every builtin that is called through Python."""
    found = BUILTINS.get(name) or _load_later(name)
    return found.call(Call(evaluation, found.shown, stack), args, kwargs)


def _load_later(name: str) -> Builtin:
    """A builtin whose module is loaded when it is first called: most runs never import a checkpoint."""
    importlib.import_module("poem.language.builtins.formats")
    importlib.import_module("poem.language.builtins.media")
    return BUILTINS[name]


def handle(item: Any, key: str, **fields: Any) -> dict[str, Any]:
    """A Poem value as the prelude turns it into a struct: its handle, its key, and what packages may read."""
    return {**fields, "_h": starlark.OpaquePythonObject(item), "_key": key}
