"""A progress bar on stderr, and only on a terminal."""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(what: str, *, in_bytes: bool = True) -> Iterator[Callable[[int, int, str], None] | None]:
    """Gives a function of (work done, work in all, name at work), or None where stderr is no terminal.

    in_bytes: the work is counted in bytes, so sizes, speed and time left are shown.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    amounts = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) if in_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *amounts, TextColumn("{task.fields[name]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, name="")

        def update(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total or None, name=name)

        yield update
