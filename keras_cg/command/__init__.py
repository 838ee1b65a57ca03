"""The command line: `keras-cg info`, `keras-cg check` and `keras-cg plot`.

__init__.py   the options, and the exit status
specs.py      what an argument is made of: `normal:4,3`
targets.py    finds the function that is meant, and its arguments
messages.py   what is said, each in one line
output.py     JSON, and the standard error
worker.py     the process of one backend: the only one that imports a framework, or the user's file
processes.py  starts these processes and follows them, whatever becomes of them
progress.py   what is shown while they work
info.py  check.py  tables.py  curves.py  plot.py
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import keras_cg
from keras_cg import backends, errors
from keras_cg.command import messages, output

__all__ = ["main"]

ARGUMENTS = """\
An argument is NAME=SPEC, where SPEC is one of
  normal:SHAPE          normal numbers: normal:4,3; normal:() for a single one
  uniform:LO,HI:SHAPE   even ones between two bounds: uniform:0,1:4,3
  linspace:LO,HI,N      N numbers from LO to HI: linspace:-5,5,400
  a Python literal      3, 0.5, '"mean"', None, [1, 2]
  @FILE.npy             an array that numpy.save wrote
with :DTYPE at will, as in normal:4,3:float64 or 0.5:float32 (an array without axes). Arrays are float32 otherwise."""


# What the commands need besides the package itself: its extra "cli".
EXTRAS = ("matplotlib", "rich", "scipy")

COMMANDS = ("info", "check", "plot")

# What a shell reports of a command that SIGPIPE ends: 128 and its number, which Windows lacks.
BROKEN_PIPE = 141

OUTPUT_LOST = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT)


class _Parser(argparse.ArgumentParser):
    """Tells a mistake as everything else that cannot be done as it was asked."""

    def error(self, message: str) -> NoReturn:
        raise messages.UsageError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: The words after `keras-cg`; those of this process if it is None.

    Returns:
        The exit status: 0 if all is well, 1 for a gradient that is not right or undecided, or a backend that failed, 2
        for something that cannot be done as it was asked, 130 after Ctrl-C, 141 if nobody reads the output any more.

    Raises:
        SystemExit: The words ask for help or the version.
    """
    words = sys.argv[1:] if argv is None else [*argv]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what a terminal cannot show must not end the command
    try:
        try:
            return _run(words)
        finally:
            if sys.stdout is not None:  # as `>&-` makes it
                sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        # rich (15) leaves with 1 after a broken pipe.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in OUTPUT_LOST or error.filename is not None:
            raise
        return _lose_output(error)


def _run(words: Sequence[str]) -> int:
    as_json = "--json" in words
    try:
        options = _parser().parse_args(words)
        as_json = getattr(options, "json", False)
        # Each command is imported when it is asked for: rich and matplotlib are extras.
        return int(importlib.import_module(f"keras_cg.command.{options.command}").run(options))
    except messages.UsageError as error:
        return _refuse(words, error, as_json)
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        return _refuse(words, messages.missing_extra(module), as_json)


def _lose_output(error: OSError) -> int:
    """The exit status when the standard output takes no more."""
    # Python flushes it once more when it ends, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    output.complain(f"keras-cg: {messages.output_lost(error.strerror or str(error))}")
    return 2


def _refuse(words: Sequence[str], error: messages.UsageError, as_json: bool) -> int:
    """Tells why something cannot be done; also as JSON where that was asked for."""
    name = " ".join(["keras-cg", *[each for each in words[:1] if each in COMMANDS]])
    output.complain(f"{name}: {error}")
    if as_json:
        output.write_json({"error": str(error), **error.data})
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="keras-cg", description="Looks at custom gradients on every installed backend.")
    parser.add_argument("--version", action="version", version=f"keras-cg {keras_cg.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_info(commands)
    _add_check(commands)
    _add_plot(commands)
    return parser


def _add_info(commands: Any) -> None:
    parser = commands.add_parser("info", help="the backends here, their versions and devices; which is active, and why")
    parser.add_argument("--json", action="store_true", help="write JSON")


def _add_check(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="check a custom gradient on every backend, each in a process of its own",
        description="Checks a custom gradient on every backend: against differences, against itself, between backends.",
        epilog=ARGUMENTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_common(parser, "FILE.py:FUNCTION or MODULE:FUNCTION; without FUNCTION all that have `example_args`")
    parser.add_argument("--value", metavar="TARGET", help="a function that gives the right output")
    parser.add_argument(
        "--fast", action="store_true", help="look along random directions alone, and compile nothing: for a hook"
    )
    parser.add_argument(
        "--order", type=int, choices=(1, 2, 3, 4), default=2, help="the highest derivative (default: 2)"
    )
    parser.add_argument(
        "--modes", type=_modes, default=("reverse", "forward"), help="reverse, forward or both (default: both)"
    )
    parser.add_argument(
        "--no-compiled", dest="compiled", action="store_false", help="neither compile the function nor export it"
    )
    parser.add_argument("--json", action="store_true", help="write JSON, and nothing else, to the standard output")


def _add_plot(commands: Any) -> None:
    parser = commands.add_parser(
        "plot",
        help="draw a function, its custom gradient and the numerical one over a range",
        description="Draws a function, its custom gradient, the numerical one, and where the two part.",
        epilog=ARGUMENTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_common(parser, "FILE.py:FUNCTION or MODULE:FUNCTION")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="an image: .png, .svg, .pdf")
    look = parser.add_mutually_exclusive_group()
    look.add_argument("--light", dest="look", action="store_const", const="light", help="on white (default)")
    look.add_argument("--dark", dest="look", action="store_const", const="dark", help="on black")
    parser.set_defaults(look="light")


def _add_common(parser: argparse.ArgumentParser, target: str) -> None:
    parser.add_argument("target", metavar="TARGET", help=target)
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=SPEC", help="an argument, see below")
    parser.add_argument("--backends", type=_backends, default=None, help="with commas between (default: all installed)")
    parser.add_argument(
        "--expected", metavar="TARGET", help="what the gradient is meant to be that of, or a rule with `upstream`"
    )
    parser.add_argument("--seed", type=_seed, default=0, help="for the random numbers (default: 0)")
    parser.add_argument(
        "--timeout", type=_seconds, default=300.0, metavar="SECONDS", help="for a function on a backend (default: 300)"
    )


def _backends(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in backends.names():
            raise argparse.ArgumentTypeError(str(errors.unknown_backend(name, "--backends", backends.names())))
    if not names:
        raise argparse.ArgumentTypeError(f"name one or more of {', '.join(backends.names())}")
    return names


def _modes(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not set(names) <= {"reverse", "forward"}:
        raise argparse.ArgumentTypeError(f"{text!r} is not reverse, forward or reverse,forward")
    return names


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not 0, 1, 2 ...")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds
