"""Loads a package: finds its `//lib/` modules, evaluates them and the package, and checks the manifest."""

import re
from collections.abc import Sequence
from typing import Any

import starlark

from poem.errors import Frame, PackageError
from poem.language import host
from poem.language.declarations import Deployment, Model, Published
from poem.language.evaluation import Evaluation
from poem.language.limits import LIMITS
from poem.language.manifest import DeclaredDeployment, check_deployments, check_models, check_published, elements
from poem.language.nesting import check_nesting
from poem.language.search_path import MODULE_ID, Modules
from poem.language.values import kind_of
from poem.suggest import nearest

FUNCTIONS = {"layout": "(id, deploy)", "formats": "(m)", "caches": "(m, c)", "forward": "(m, inputs)"}
OPTIONAL_FUNCTIONS = {"media": "(id, deploy)", "generative": "(m)", "diffusion": "(m)"}
GLOBALS = ("MODELS", "DEPLOYMENTS", "PUBLISHED")


class Loaded:
    """An evaluated package: its texts, its frozen modules by load id, and its manifest."""

    def __init__(self, name: str, files: dict[str, str]) -> None:
        self.name = name
        self.files = files
        self.modules: dict[str, starlark.FrozenModule] = {}
        self.models: dict[str, Model] = {}
        self.deployments: dict[str, Deployment] = {}
        self.published: tuple[Published, ...] = ()

    @property
    def file(self) -> str:
        return f"{self.name}.poem"


PACKAGE = "@package"


def load(name: str, text: str, modules: Modules) -> Loaded:
    """Evaluate a package and everything it loads, and check its manifest.

    Raises PackageError (`load.*`, `manifest.*`, `call.*`, `phase.wrong`, `budget.*`).
    """
    loaded = Loaded(name, {f"{name}.poem": text})
    _Loader(loaded, modules).package()
    _manifest(loaded)
    return loaded


class _Loader:
    def __init__(self, loaded: Loaded, modules: Modules) -> None:
        self.loaded, self.modules = loaded, modules

    def package(self) -> None:
        module = self.evaluate(self.loaded.file, self.loaded.files[self.loaded.file], ())
        self.loaded.modules[PACKAGE] = module

    def evaluate(self, file: str, text: str, chain: tuple[Frame, ...]) -> starlark.FrozenModule:
        """Evaluate one file after everything it loads. `chain`: the load statements that led here, outermost first."""
        evaluation = Evaluation("load", self.loaded.files)
        try:
            check_nesting(file, text)
            try:
                ast = host.parse(file, text)
            except starlark.StarlarkError as fault:
                raise _parse_error(evaluation, str(fault)) from None
            for load in ast.loads():
                self.load(load.module_id, file, text, chain)
            self.check_symbols(evaluation, file, text)
            module = host.user_module()
            host.run(evaluation, module, ast, self.loaded.modules, LIMITS.load_seconds)
        except PackageError as error:
            if error.code == "load.unknown-name" and not chain:  # perhaps a name that the wrong parameter list lacks
                _check_parameters(evaluation, file, text)
            if chain and not (error.stack and error.stack[0] == chain[0]):
                error.stack = (*chain, *(error.stack or (Frame(error.file, error.line, "<module>"),)))
            raise
        return module.freeze()

    def check_symbols(self, evaluation: Evaluation, file: str, text: str) -> None:
        """Load what the file loads, and nothing else: a missing symbol would otherwise show as an unknown name further down."""
        loads = list(_LOAD.finditer(text))
        if loads:
            alone, end = "", 0
            for found in loads:
                alone += "\n" * text.count("\n", end, found.start()) + found[0]
                end = found.end()
            host.run(evaluation, starlark.Module(), host.parse(file, alone), self.loaded.modules, LIMITS.load_seconds)

    def load(self, module: str, file: str, text: str, chain: tuple[Frame, ...]) -> None:
        """Evaluate a loaded module, unless that was done."""
        where = (*chain, Frame(file, _line_of_load(text, module), "load"))

        def refuse(code: str, message: str, expected: str = "", found: str = "", hint: str = "") -> PackageError:
            return PackageError(
                code, message, phase="load", file=file, line=where[-1].line, stack=where, expected=expected, found=found, hint=hint
            )

        if not MODULE_ID.fullmatch(module):
            raise refuse(
                "load.bad-path", f'"{module}" cannot be loaded', expected='"//lib/NAME.poem"', found=module,
                hint="only //lib/ modules can be loaded: put shared code in `lib/` beside the package",
            )  # fmt: skip
        own = module.removeprefix("//")
        before = [frame.file for frame in where]
        if own in before:
            cycle = " -> ".join([*before, own])
            raise refuse("load.cycle", f"files load each other: {cycle}", found=cycle)
        if module in self.loaded.modules:
            return
        if len(self.loaded.files) >= LIMITS.files:
            raise refuse("load.too-large", f"a package loads at most {LIMITS.files} files", expected=f"at most {LIMITS.files} files")
        found = self.modules.read(module)
        if found is None:
            link = self.modules.leaving(module)
            if link is not None:
                raise refuse(
                    "load.bad-path", f'"{module}" is a link out of its folder', found=f"{link} -> {link.resolve()}",
                    hint="only //lib/ modules can be loaded: copy the file into `lib/`",
                )  # fmt: skip
            near = nearest(module, self.modules.known())
            raise refuse(
                "load.missing-module", f'there is no "{module}"; searched: {self.modules.searched}', found=module,
                hint=f'did you mean "{near}"?' if near else "",
            )  # fmt: skip
        self.loaded.files[own] = found
        self.loaded.modules[module] = self.evaluate(own, found, where)


def _parse_error(evaluation: Evaluation, told: str) -> PackageError:
    from poem.language.host_errors import translate

    error = translate(evaluation, told)
    if error.code == "load.error":
        error.code = "load.parse"
    if error.code == "load.parse" and not error.found:
        lines = evaluation.files.get(error.file, "").split("\n")
        error.found = lines[error.line - 1].strip()[:120] if 0 < error.line <= len(lines) else ""
    return error


# A load statement at the top level; strings in it hold no brackets.
_LOAD = re.compile(r"^load\([^()]*\)", re.MULTILINE)


def _line_of_load(text: str, module: str) -> int:
    found = re.search(rf"^[ \t]*load\(\s*r?[\"']{re.escape(module)}[\"']", text, re.MULTILINE) or re.search(
        r"^[ \t]*load\(", text, re.MULTILINE
    )
    return text.count("\n", 0, found.start()) + 1 if found else 1


# -- manifest ----------------------------------------------------------------------------------------------------------
_DEFINITION = re.compile(r"^(?:def[ \t]+(\w+)|(\w+)[ \t]*(?::[^=\n]*)?=(?!=))", re.MULTILINE)
_PARAMETERS = re.compile(r"^def[ \t]+(\w+)[ \t]*\(", re.MULTILINE)


def _definitions(text: str) -> dict[str, list[int]]:
    """The lines on which a text defines each of its globals."""
    lines: dict[str, list[int]] = {}
    for found in _DEFINITION.finditer(text):
        lines.setdefault(found[1] or found[2], []).append(text.count("\n", 0, found.start()) + 1)
    return lines


def _manifest(loaded: Loaded) -> None:
    text = loaded.files[loaded.file]
    evaluation = Evaluation("load", loaded.files)

    refuse = evaluation.error

    defined = _definitions(text)

    def place(name: str) -> tuple[Frame, ...]:
        return (Frame(loaded.file, defined.get(name, [1])[0], "<module>"),)

    for name in (*GLOBALS, *FUNCTIONS, *OPTIONAL_FUNCTIONS):
        lines = defined.get(name, [])
        if len(lines) > 1 and _defined_twice(loaded.file, text, name):
            where = (Frame(loaded.file, lines[1], "<module>"),)
            raise refuse(
                "manifest.duplicate-definition", f"{name} is defined twice, on the lines {lines[0]} and {lines[1]}", where,
                found=" and ".join(f"{loaded.file}:{line}" for line in lines[:2]),
            )  # fmt: skip
    optional = [name for name in ("PUBLISHED", *OPTIONAL_FUNCTIONS) if name in text]
    given = _read_globals(loaded, evaluation, optional)
    for name in (*GLOBALS[:2], *FUNCTIONS):
        if name not in given:
            near = nearest(name, re.findall(r"^(?:def[ \t]+)?([A-Za-z_]\w*)[ \t]*[=(:]", text, re.MULTILINE))
            lines = defined.get(near, []) if near else []
            where = (Frame(loaded.file, lines[0] if lines else 1, "<module>"),)
            hint = f"did you mean `{near}`, on line {lines[0]}?" if near and lines else ""
            expected = f"def {name}{FUNCTIONS[name]}" if name in FUNCTIONS else f"{name} = [...]"
            raise refuse("manifest.missing", f"the package defines no {name}", where, expected=expected, hint=hint)
    for name, parameters in {**FUNCTIONS, **OPTIONAL_FUNCTIONS}.items():
        if name in given and getattr(given[name], "word", "") != "function":
            message = f"{name} must be a function {name}{parameters}"
            raise refuse("manifest.bad-function", message, place(name), expected=f"def {name}{parameters}", found=kind_of(given[name]))
    _check_parameters(evaluation, loaded.file, text)
    models = elements("MODELS", given["MODELS"], Model, place("MODELS"), refuse)
    loaded.models = check_models(models, place("MODELS"), refuse)
    declared = elements("DEPLOYMENTS", given["DEPLOYMENTS"], DeclaredDeployment, place("DEPLOYMENTS"), refuse)
    loaded.deployments = check_deployments(declared, loaded.models, place("DEPLOYMENTS"), refuse)
    published = elements("PUBLISHED", given.get("PUBLISHED", []), Published, place("PUBLISHED"), refuse)
    check_published(published, loaded.deployments, refuse)
    loaded.published = tuple(published)


def _defined_twice(file: str, text: str, name: str) -> bool:
    """Whether the host sees two definitions too: a text in a string is none."""
    return any(found.short_name == "duplicate-top-level-assign" and found.original == name for found in host.parse(file, text).lint())


def _read_globals(loaded: Loaded, evaluation: Evaluation, optional: Sequence[str]) -> dict[str, Any]:
    """The globals of the package, as they cross: lists of handles, stand-ins for functions. Absent ones are left out."""
    given: dict[str, Any] = {}
    wanted = [*GLOBALS[:2], *FUNCTIONS, *optional]
    together = f'load("{host.PRELUDE}", "deliver")\nload("{PACKAGE}", {", ".join(chr(34) + name + chr(34) for name in wanted)})\n'
    together += "".join(f'deliver("{name}", {name})\n' for name in wanted)
    evaluation.delivered["globals"] = given
    try:
        host.run(evaluation, starlark.Module(), host.parse("@read", together), loaded.modules, LIMITS.load_seconds)
    except PackageError as error:
        if error.code != "load.missing-symbol":
            raise
        given.clear()
        for name in wanted:  # one at a time, to learn which are there
            alone = f'load("{host.PRELUDE}", "deliver")\nload("{PACKAGE}", "{name}")\ndeliver("{name}", {name})\n'
            try:
                host.run(evaluation, starlark.Module(), host.parse("@read", alone), loaded.modules, LIMITS.load_seconds)
            except PackageError as missing:
                if missing.code != "load.missing-symbol":
                    raise
    return given


def _check_parameters(evaluation: Evaluation, file: str, text: str) -> None:
    """Refuse a function that the front end could not call (`manifest.bad-function`)."""
    functions: dict[str, re.Match[str]] = {}
    for found in _PARAMETERS.finditer(text):
        functions.setdefault(found[1], found)
    for name, parameters in {**FUNCTIONS, **OPTIONAL_FUNCTIONS}.items():
        if name not in functions:
            continue
        found = functions[name]
        least, most = _arity(text, found.end())
        wanted = parameters.count(",") + 1
        if not least <= wanted <= most:
            where = (Frame(file, text.count("\n", 0, found.start()) + 1, "<module>"),)
            raise evaluation.error(
                "manifest.bad-function", f"{name} takes {parameters}, {wanted} by position", where,
                expected=f"def {name}{parameters}", found=f"{least} parameter{'' if least == 1 else 's'}",
            )  # fmt: skip


def _arity(text: str, at: int) -> tuple[int, float]:
    """The least and the greatest number of positional arguments of the parameter list that starts at `at`."""
    depth, parts, current = 0, [], ""
    for token in re.finditer(r'#[^\n]*|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|.', text[at:], re.DOTALL):
        word = token[0]
        if word.startswith("#"):
            continue
        if word in "([{":
            depth += 1
        elif word in ")]}":
            if depth == 0:
                break
            depth -= 1
        if word == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += word
    parts.append(current.strip())
    least, most = 0, 0.0
    for part in filter(None, parts):
        if part.startswith("**"):
            continue
        if part.startswith("*"):
            if part != "*":
                most = float("inf")
            break
        most += 1
        least += "=" not in part
    return least, most
