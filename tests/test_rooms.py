"""Which room may import which: the structure of the project, held by a test."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("poem", "interp", "cupy_backend", "conformance")
# Imports that run when a module is loaded. Inside functions the command line may load any room by need.
MAY_IMPORT_AT_LOAD = {
    "poem": set(),
    "interp": {"poem"},
    "cupy_backend": {"poem"},
    "conformance": {"poem", "interp", "cupy_backend"},
}
HEAVY = ("torch", "transformers", "cupy", "rich", "jinja2", "tokenizers", "gguf", "huggingface_hub", "numpy.testing")


def imports(tree: ast.AST, *, at_load: bool) -> set[tuple[str, int]]:
    """Top-level package names imported in a module, with lines; at load time, or inside functions."""
    found: set[tuple[str, int]] = set()

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if inside != at_load:
            if isinstance(node, ast.Import):
                found.update((alias.name.split(".")[0], node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add((node.module.split(".")[0], node.lineno))
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(tree, False)
    return found


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules(room)
        for name, line in imports(ast.parse(path.read_text()), at_load=True)
        if name in ROOMS and name != room and name not in MAY_IMPORT_AT_LOAD[room]
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_command_line_of_poem_loads_other_rooms_by_need() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules("poem")
        if not str(path.relative_to(ROOT)).startswith("poem/cli/")
        for name, line in imports(ast.parse(path.read_text()), at_load=False)
        if name in ROOMS and name != "poem"
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_outside_the_tests_imports_the_tests() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for room in ROOMS
        for path in modules(room)
        for at_load in (True, False)
        for name, line in imports(ast.parse(path.read_text()), at_load=at_load)
        if name == "tests"
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_poem_loads_nothing_heavy() -> None:
    program = f"import sys, poem; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
