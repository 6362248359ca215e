"""The host's error texts as PoemErrors: the user's place, the code of the language, and what to try."""

import re
from typing import NamedTuple

from poem.dtypes import WORDS
from poem.errors import Frame, PackageError
from poem.language.evaluation import Evaluation
from poem.language.frames import is_user_file, user_frames
from poem.language.inputs import ALL
from poem.ops import NAMESPACES, REGISTRY
from poem.ops.spellings import spelled_today
from poem.suggest import did_you_mean

_LOCATION = re.compile(r"^ *--> (.*):(\d+):(\d+)$", re.MULTILINE)
_CARETS = re.compile(r"^ *\|\s*(\^+)", re.MULTILINE)
WEIGHT_METHODS = ("shape", "dtype", "cut_axis", "columns", "rows", "packed", "bank", "registered", "conv_taps_major")
VALUE_FIELDS = ("rows", "shape", "dtype", "width")


class Host(NamedTuple):
    """A host's error, taken apart. `text` is the user's source it points at, where that is on one line."""

    message: str
    file: str
    line: int
    column: int
    text: str
    stack: tuple[Frame, ...]


def take_apart(evaluation: Evaluation, told: str) -> Host:
    """Parse what the host prints: a call stack, `error: message`, ` --> file:line:column` and an excerpt."""
    head, mark, rest = told.partition("error: ") if told.startswith("error: ") else told.partition("\nerror: ")
    if not mark:
        head, rest = "", told
    places = list(_LOCATION.finditer(rest))
    stack = user_frames(head)
    if not places:
        return Host(rest.strip(), stack[-1].file if stack else "", stack[-1].line if stack else 0, 0, "", stack)
    place = places[-1]
    message = rest[: place.start()].strip()
    file, line, column = place[1], int(place[2]), int(place[3])
    text = ""
    carets = _CARETS.search(rest, place.end())
    source = evaluation.files.get(file, "").split("\n")
    if carets and line <= len(source):
        text = source[line - 1][column - 1 : column - 1 + len(carets[1])]
    if not is_user_file(file):  # inside the prelude or a driver: the user's innermost frame counts
        return Host(message, stack[-1].file if stack else "", stack[-1].line if stack else 0, 0, "", stack)
    if not stack or (stack[-1].file, stack[-1].line) != (file, line):
        stack = (*stack, Frame(file, line, stack[-1].function if stack else "<module>"))
    return Host(message, file, line, column, text, stack)


def translate(evaluation: Evaluation, told: str, internal: BaseException | None = None) -> PackageError:
    """The PackageError for a host's error text; `internal` is a fault of our own behind it."""
    host = take_apart(evaluation, told)
    if internal is not None:
        error = _error(evaluation, host, "internal.error", f"an internal fault: {type(internal).__name__}: {str(internal)[:200]}")
        error.__cause__ = internal
        return error
    for pattern, rule in _RULES:
        found = pattern.match(host.message)
        if found:
            refusal = rule(evaluation, host, found)
            if refusal is not None:
                return refusal
    code = "load.parse" if host.message.startswith("Parse error") else f"{evaluation.phase}.error"
    return _error(evaluation, host, code, _sentence(host.message))


def _sentence(message: str) -> str:
    return re.sub(r"^Parse error: ", "", message).replace("\n", " ")[:500]


def _error(evaluation: Evaluation, host: Host, code: str, message: str, **details: str) -> PackageError:
    error = evaluation.error(code, message, host.stack, host.column, **details)
    if host.file:
        error.file, error.line = host.file, host.line
    return error


def _suggestion(message: str) -> str:
    found = re.search(r"did you mean (`[^`]+`)", message)
    return f"did you mean {found[1]}?" if found else ""


# -- rules ---------------------------------------------------------------------------------------------------------------
def _unknown_name(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError:
    from poem.language.host import BUILTIN_NAMES, UNIVERSE

    name = found[1]
    text = evaluation.files.get(host.file, "")
    defined = re.findall(r"^(?:def[ \t]+)?([A-Za-z_]\w*)[ \t]*[=(]", text, re.MULTILINE)
    loaded = re.findall(r'^load\([^)]*"(\w+)"', text, re.MULTILINE)
    hint = did_you_mean(name, [*BUILTIN_NAMES, *UNIVERSE, *defined, *loaded]) or _suggestion(host.message)
    return _error(evaluation, host, "load.unknown-name", f"`{name}` is not defined", found=name, hint=hint)


def _alias(evaluation: Evaluation, host: Host, base: str) -> str:
    """What a name stands for, where the text assigns it once from a namespace: `lin = ops.linear`."""
    found = re.findall(
        rf"^[ \t]*{re.escape(base)}[ \t]*=[ \t]*((?:ops|dtype)(?:\.\w+)?)[ \t]*(?:#.*)?$", evaluation.files.get(host.file, ""), re.MULTILINE
    )
    return found[0] if len(found) == 1 else base


def _parameter(evaluation: Evaluation, function: str, index: int) -> str:
    """The name of a parameter of one of the package's functions."""
    for text in evaluation.files.values():
        found = re.search(rf"^def[ \t]+{function}[ \t]*\(([^)]*)\)", text, re.MULTILINE)
        if found:
            names = [part.split(":")[0].split("=")[0].strip() for part in found[1].split(",")]
            return names[index] if index < len(names) else ""
        break
    return ""


def _unknown_attribute(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError:
    kind, name = found[1], found[2]
    suggested = _suggestion(host.message)
    if kind != "struct":
        word = {"NoneType": "None"}.get(kind, f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}")
        return _error(
            evaluation, host, f"{evaluation.phase}.unknown-field", f"{word} has no field or method `{name}`", found=name, hint=suggested
        )
    before = re.match(rf"(.*?)\.{name}\b", host.text, re.DOTALL)
    base = before[1].strip() if before else ""
    base = _alias(evaluation, host, base) if re.fullmatch(r"\w+", base) else base
    if base == "dtype":
        hint = did_you_mean(name, WORDS)
        return _error(
            evaluation, host, "call.unknown-dtype", f"there is no dtype `{name}`", expected="a dtype word, e.g. bf16", found=name, hint=hint
        )
    if base == "ops":
        today = spelled_today(name)
        hint = f"use {today}" if today else did_you_mean(name, NAMESPACES)
        return _error(
            evaluation,
            host,
            "forward.unknown-op",
            f"there is no namespace ops.{name}",
            expected=" ".join(NAMESPACES),
            found=name,
            hint=hint,
        )
    if base.startswith("ops."):
        return unknown_op(evaluation, host, f"{base[4:]}.{name}")
    if (base and base == (_parameter(evaluation, "forward", 1) or "inputs")) or base == "inputs":
        hint = did_you_mean(name, (*ALL, "fold_layers"))
        return _error(evaluation, host, "forward.unknown-input", f"inputs has no method `{name}`", found=name, hint=hint)
    if re.search(r"\bweight\(.*\)$", base):
        hint = did_you_mean(name, WEIGHT_METHODS)
        return _error(
            evaluation,
            host,
            f"{evaluation.phase}.unknown-field",
            f"a weight has no method `{name}`",
            expected=" ".join(WEIGHT_METHODS),
            hint=hint,
        )
    what = f"`{base}`" if base else "this value"
    return _error(evaluation, host, f"{evaluation.phase}.unknown-field", f"{what} has no field `{name}`", found=name, hint=suggested)


def unknown_op(evaluation: Evaluation, host: Host, name: str) -> PackageError:
    """An op that does not exist, with the spelling of today or the nearest name."""
    namespace, _, short = name.partition(".")
    today = spelled_today(name)
    here = [op.name for op in REGISTRY.values() if op.namespace == namespace]
    hint = f"use {today}" if today else did_you_mean(short, here)
    if not hint:
        elsewhere = [op.full_name for op in REGISTRY.values() if op.name == short]
        hint = f"did you mean `ops.{elsewhere[0]}`?" if elsewhere else ""
    return _error(evaluation, host, "forward.unknown-op", f"there is no ops.{name}", found=name, hint=hint)


def _missing_symbol(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError:
    hint = _suggestion(host.message)
    return _error(evaluation, host, "load.missing-symbol", f"the module defines no `{found[1]}`", found=found[1], hint=hint)


def _private(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError:
    return _error(evaluation, host, "load.private", f"`{found[1]}` is private: names that start with `_` cannot be loaded", found=found[1])


def _frozen(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError:
    return _error(
        evaluation, host, "load.frozen", "a list or dict of the top level cannot change after the file is loaded",
        hint="copy it first: list(X) or dict(X)",
    )  # fmt: skip


def _depth(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError:
    from poem.language.limits import LIMITS

    message = f"calls nest more than {LIMITS.depth} deep"
    return _error(evaluation, host, "budget.depth", message, hint="does a function call itself without end?")


def _refused(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError:
    message = host.message[len("fail:") :].strip()[:2000]
    if evaluation.deployment is not None and evaluation.deployment.name not in message:
        message = f"{message} (deployment {evaluation.deployment.name})"
    return _error(evaluation, host, f"{evaluation.phase}.refused", message)


def _operator(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError | None:
    operator, left, right = found[1], found[2], found[3]
    if evaluation.phase != "forward" or "struct" not in (left, right) or not re.fullmatch(r"[-+*/%|&^<>=]+|\[\]|in", operator):
        return None
    parts = [part.strip() for part in host.text.split(operator)] if operator in "+-*/" else []
    hint = "values have no operators; ops.elemwise has what they would do"
    if len(parts) == 2 and all(parts):
        a, b = parts
        numbers = ("int", "float")
        if operator == "*" and (left in numbers or right in numbers):
            factor, value = (a, b) if left in numbers else (b, a)
            hint = f"write ops.elemwise.mul_scalar({factor}, {value})"
        elif operator == "/" and right in numbers:
            hint = f"write ops.elemwise.mul_scalar(1.0 / {b}, {a})"
        elif left == right and operator in "+*":
            hint = f"write ops.elemwise.{'add' if operator == '+' else 'mul'}({a}, {b})"
        elif left == right and operator == "-":
            hint = f"write ops.elemwise.add({a}, ops.elemwise.mul_scalar(-1.0, {b}))"
    return _error(evaluation, host, "forward.no-operator", f"values have no operator `{operator}`", found=host.text, hint=hint)


def _unary(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError | None:
    if evaluation.phase != "forward" or found[2] != "struct" or found[1] not in ("-", "+", "~"):
        return None
    hint = f"write ops.elemwise.mul_scalar(-1.0, {host.text[1:].strip()})" if found[1] == "-" and host.text else ""
    return _error(evaluation, host, "forward.no-operator", f"values have no operator `{found[1]}`", found=host.text, hint=hint)


def _function(name: str) -> str:
    short = name.rpartition(".")[2]
    return "the function" if short in ("lambda", "call", "builtin", "op") else f"{short}()"


def _too_many(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError:
    return _error(evaluation, host, "call.too-many", f"{_function(found[2])} is called with {found[1]} arguments too many by position")


def _extra_named(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError:
    return _error(evaluation, host, "call.unknown-argument", f"{_function(found[2])} has no argument {found[1]}", found=found[1].strip("`"))


def _missing(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError:
    return _error(evaluation, host, "call.missing-argument", f"{_function(found[2])}: {found[1]} is missing", expected=found[1])


def _repeated(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError:
    name = found[1] if found.groups() else ""
    return _error(
        evaluation, host, "call.repeated-argument", f"the argument {name} is given twice" if name else "an argument is given twice"
    )


def _wrong_count(evaluation: Evaluation, host: Host, found: re.Match[str]) -> PackageError:
    code = "call.too-many" if int(found[2]) > int(found[1]) else "call.missing-argument"
    message = f"{found[1]} arguments by position are wanted, found {found[2]}"
    if host.text.startswith("struct("):
        message = "struct() takes named fields only"
    return _error(evaluation, host, code, message, expected=found[1], found=found[2])


_RULES = [
    (re.compile(r"Variable `(\w+)` not found"), _unknown_name),
    (re.compile(r"Object of type `(\w+)` has no attribute `(\w+)`"), _unknown_attribute),
    (re.compile(r"Module has no symbol `(\w+)`"), _missing_symbol),
    (re.compile(r"Cannot import private symbol `(\w+)`"), _private),
    (re.compile(r"Immutable"), _frozen),
    (re.compile(r"Starlark call stack overflow"), _depth),
    (re.compile(r"fail:"), _refused),
    (re.compile(r"Operation `(.+?)` not supported for types `(\w+)` and `(\w+)`"), _operator),
    (re.compile(r"Operation `(.+?)` not supported on type `(\w+)`"), _unary),
    (re.compile(r"Found (\d+) extra positional argument\(s\) for call to (\S+)"), _too_many),
    (re.compile(r"Found (.+?) extra named parameter\(s\) for call to (\S+)"), _extra_named),
    (re.compile(r"Missing (?:named-only |positional-only )?parameter (`\w+`) for call to `?([^`\s]+)`?"), _missing),
    (re.compile(r"Argument (`\w+`) occurs more than once"), _repeated),
    (re.compile(r"repeated named argument"), _repeated),
    (re.compile(r"Wrong number of positional arguments, expected (\d+), got (\d+)"), _wrong_count),
]
