"""`poem new`: write a small package to start from."""

import argparse
import re
from pathlib import Path

from poem.errors import UsageError

STARTER = Path(__file__).parent.parent / "language" / "starter.poem"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem new`."""
    parser.add_argument("name", metavar="NAME", help="the package's name: a letter, then letters, digits and _")
    parser.add_argument("--to", metavar="DIR", default=".", help="where to write NAME.poem (default: here)")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")


def run(arguments: argparse.Namespace) -> int:
    """Writes NAME.poem and prints its path. Raises UsageError for a name that is none, or a file that exists."""
    from poem.language.search_path import PACKAGE_NAME

    name = arguments.name.removesuffix(".poem")
    if not PACKAGE_NAME.fullmatch(name) or name == "lib":
        raise UsageError(
            "new.bad-name", f"`{arguments.name}` cannot be a package's name", phase="new",
            expected="a letter, then letters, digits and `_`, not `lib`", found=repr(arguments.name),
        )  # fmt: skip
    path = Path(arguments.to) / f"{name}.poem"
    if path.exists() and not arguments.force:
        raise UsageError("new.exists", f"{path} exists", phase="new", file=str(path), hint="--force replaces it")
    if not path.parent.is_dir():
        raise UsageError("new.no-folder", f"the folder {path.parent} does not exist", phase="new", file=str(path))
    path.write_text(starter(name), encoding="utf-8")
    print(path)
    return 0


def starter(name: str) -> str:
    """The text of a package of that name."""
    words = {"NAME": name, "ID": name.lower().replace("_", "-").strip("-")}
    return re.sub(r"\b(NAME|ID)\b", lambda found: words[found[1]], STARTER.read_text(encoding="utf-8"))
