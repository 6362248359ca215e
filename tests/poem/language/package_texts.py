"""Package texts for tests: the examples of the language, and how to change them."""

from collections.abc import Mapping
from pathlib import Path

from poem.package import Package, load_package_from_texts

FOLDER = Path(__file__).with_name("packages")
FILES = ("toy.poem", "llama_3.poem", "lib/blocks.poem")
TEXTS = {file: (FOLDER / file).read_text(encoding="utf-8") for file in FILES}
TOY, LLAMA, BLOCKS = (TEXTS[file] for file in FILES)


def swapped(text: str, *changes: tuple[str, str]) -> str:
    """`text` with parts replaced; every part has to be there."""
    for old, new in changes:
        assert old in text, f"{old!r} is not in the text"
        text = text.replace(old, new, 1)
    return text


def toy(*changes: tuple[str, str]) -> Package:
    """The toy package, changed."""
    return load_package_from_texts("toy", {"toy.poem": swapped(TOY, *changes)})


def package(name: str, text: str, files: Mapping[str, str] | None = None) -> Package:
    """A package from its text; `files` are library modules."""
    return load_package_from_texts(name, {f"{name}.poem": text, **(files or {})})
