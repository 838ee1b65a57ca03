"""What is shown on the standard error while a command works for longer than a second, if that is a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["bar", "shown"]

# How many seconds of work need no picture.
DELAY = 1.0


@contextlib.contextmanager
def shown(picture: Callable[[], RenderableType]) -> Iterator[None]:
    """Shows what `picture` makes, again and again, as long as the work inside takes; then takes it away."""
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
    """The terminal that somebody watches; None if there is none, or no Rich, which `--json` does without."""
    # Not by Rich, which takes anything for a terminal that FORCE_COLOR asks for.
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(stderr=True)
    return None if console.is_dumb_terminal else console


def bar(done: int, total: int, what: str) -> RenderableType:
    """A bar, and how far it is in words: `3 of 8 checks`."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    found = Table.grid(padding=(0, 1))
    found.add_row(" ", ProgressBar(total, done, width=40), Text(f"{done} of {total} {what}", "dim"))
    return found
