"""The script `keras-cg`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> int:
    """Runs the command line, which Ctrl-C ends without a traceback from its first import on.

    Returns:
        The exit status, as `keras_cg.command.main` has it.
    """
    try:
        from keras_cg import command

        return command.main()
    except KeyboardInterrupt:
        return 130
