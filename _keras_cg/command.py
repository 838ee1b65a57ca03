"""The script `keras-cg`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> int:
    """Runs the command line; Ctrl-C ends it without a traceback, even during the imports.

    Returns:
        The exit status of `keras_cg.command.main`, or 130 after Ctrl-C.
    """
    try:
        from keras_cg import command

        return command.main()
    except KeyboardInterrupt:
        return 130
