"""Where packages and `//lib/` modules are found: the file's own folder, $POEM_HOME/models, the models shipped with Poem."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from poem.errors import PackageError
from poem.home import poem_home, shipped_models
from poem.language.limits import LIMITS
from poem.suggest import nearest

PACKAGE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
MODULE_ID = re.compile(r"//lib/((?:[A-Za-z0-9_]+/)*[A-Za-z0-9_]+\.poem)")


def default_roots() -> list[Path]:
    """$POEM_HOME/models and the shipped models, without the folder of a package given by path."""
    return [poem_home() / "models", shipped_models()]


def find_package(path_or_name: str | Path, roots: Sequence[Path]) -> Path:
    """The file of a package. Raises PackageError (`load.missing-package`, `load.bad-name`)."""
    given = str(path_or_name)
    if isinstance(path_or_name, Path) or given.endswith(".poem") or "/" in given or "\\" in given:
        path = Path(path_or_name)
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            raise PackageError("load.missing-package", f"{path} {what}", phase="load", file=str(path), hint=_near_file(path))
        check_name(path)
        return path
    for root in roots:
        path = root / f"{given}.poem"
        if given != "lib" and path.is_file():
            check_name(path)
            return path
    known = [path.stem for path in list_packages(roots)]
    near = nearest(given, known)
    raise PackageError(
        "load.missing-package", f"there is no package `{given}`", phase="load",
        expected=" ".join(known), found=f"searched {' '.join(str(root) for root in roots)}", hint=f"did you mean `{near}`?" if near else "",
    )  # fmt: skip


def _near_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    near = nearest(path.name, (other.name for other in path.parent.glob("*.poem")))
    return f"did you mean `{path.with_name(near)}`?" if near else ""


def check_name(path: Path) -> None:
    """The file stem is the package name (`load.bad-name`)."""
    if path.suffix != ".poem" or not PACKAGE_NAME.fullmatch(path.stem) or path.stem == "lib":
        raise PackageError(
            "load.bad-name", f"`{path.name}` cannot be the file of a package", phase="load", file=str(path),
            expected="NAME.poem, NAME a letter followed by letters, digits and `_`, not `lib`", found=path.name,
        )  # fmt: skip


def list_packages(roots: Sequence[Path]) -> list[Path]:
    """The package files of all roots by name; the first root that has a name wins."""
    found: dict[str, Path] = {}
    for root in roots:
        for path in sorted(root.glob("*.poem")) if root.is_dir() else ():
            if PACKAGE_NAME.fullmatch(path.stem) and path.stem != "lib":
                found.setdefault(path.stem, path)
    return [found[name] for name in sorted(found)]


class ModulesOnDisk:
    """The `//lib/` modules of some roots; the first root that has a module wins."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = list(dict.fromkeys(roots))

    @property
    def searched(self) -> str:
        return ", ".join(str(root) for root in self.roots)

    def read(self, module: str) -> str | None:
        """The text of a module that passed `MODULE_ID`, or None."""
        for root in self.roots:
            path = root / module.removeprefix("//")
            if path.is_file() and not _leaves(path, root):
                return read_text(path, module.removeprefix("//"))
        return None

    def leaving(self, module: str) -> Path | None:
        """A file of that name that is a link out of its root, and so is not read."""
        paths = ((root / module.removeprefix("//"), root) for root in self.roots)
        return next((path for path, root in paths if path.is_file() and _leaves(path, root)), None)

    def known(self) -> list[str]:
        """Every module id, for suggestions."""
        return [f"//{path.relative_to(root).as_posix()}" for root in self.roots for path in (root / "lib").glob("**/*.poem")]


def _leaves(path: Path, root: Path) -> bool:
    return not path.resolve().is_relative_to(root.resolve())


class ModulesInTexts:
    """The modules among the texts that an artifact carries."""

    searched = "only the texts that the file carries"

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files

    def read(self, module: str) -> str | None:
        return self.files.get(module.removeprefix("//"))

    def leaving(self, module: str) -> None:
        """Texts are no links."""

    def known(self) -> list[str]:
        return [f"//{file}" for file in self.files if file.startswith("lib/")]


Modules = ModulesOnDisk | ModulesInTexts


def read_text(path: Path, shown: str) -> str:
    """The text of a source file. Raises PackageError (`load.too-large`, `load.not-utf8`, `load.unreadable`)."""
    try:
        with path.open("rb") as file:
            raw = file.read(LIMITS.file_bytes + 1)
            size = len(raw) if len(raw) <= LIMITS.file_bytes else path.stat().st_size
    except OSError as fault:
        raise PackageError("load.unreadable", f"{path} cannot be read: {fault.strerror}", phase="load", file=shown) from None
    return check_text(raw, size, shown)


def check_text(raw: bytes, size: int, shown: str) -> str:
    """The decoded text of a source file of `size` bytes."""
    if size > LIMITS.file_bytes:
        raise PackageError(
            "load.too-large", f"the file has {size} bytes, more than {LIMITS.file_bytes}", phase="load", file=shown,
            expected=f"at most {LIMITS.file_bytes} bytes", found=f"{size} bytes",
        )  # fmt: skip
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise PackageError(
            "load.not-utf8", f"the file is not UTF-8: byte {fault.start} is 0x{raw[fault.start]:02x}", phase="load", file=shown,
            line=raw.count(b"\n", 0, fault.start) + 1, expected="UTF-8 text", found=f"0x{raw[fault.start]:02x} at byte {fault.start}",
        ) from None  # fmt: skip
    return text.replace("\r\n", "\n")
