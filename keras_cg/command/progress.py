"""Shows progress on the standard error, if it is a terminal, while a command works for more than a second."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["bar", "shown"]

# Work that is finished within so many seconds shows no progress.
DELAY = 1.0


@contextlib.contextmanager
def shown(picture: Callable[[], RenderableType]) -> Iterator[None]:
    """Shows the result of `picture`, refreshed during the work in the context; then removes it."""
    console = _terminal()
    if console is None:
        yield
        return
    from rich.live import Live

    live = Live(
        console=console,
        get_renderable=picture,
        refresh_per_second=12,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    timer = threading.Timer(DELAY, live.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        live.stop()


def _terminal() -> Console | None:
    """Returns the terminal on the standard error; None if there is none, or Rich is not installed.

    `--json` works without Rich.
    """
    # Rich treats a pipe as a terminal if FORCE_COLOR is set, so the stream itself is asked.
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(stderr=True)
    return None if console.is_dumb_terminal else console


def bar(done: int, total: int, what: str) -> RenderableType:
    """Returns a progress bar with a text such as `3 of 8 checks`."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    found = Table.grid(padding=(0, 1))
    found.add_row(" ", ProgressBar(total, done, width=40), Text(f"{done} of {total} {what}", "dim"))
    return found
