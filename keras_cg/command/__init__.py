"""The command line: `keras-cg info`, `keras-cg check` and `keras-cg plot`.

__init__.py   the options, and the exit status
specs.py      evaluates the arguments: `rng.normal(size=(4, 3))`
targets.py    finds the function to check, and its arguments
messages.py   the messages, each in one line
output.py     writes JSON, and the standard error
worker.py     the process of one backend: the only process that imports a framework or the user's file
processes.py  starts these processes, reads their events and reports how they end
progress.py   shows the progress while they work
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
from keras_cg import backends
from keras_cg.command import messages, output, specs
from keras_cg.engine import messages as engine_messages

__all__ = ["main"]

ARGUMENTS = """\
An argument is NAME=EXPRESSION, in Python, where np is NumPy and rng a numpy.random.Generator:
  'x=rng.normal(size=(4, 3))'   normally distributed numbers
  'x=np.linspace(-5, 5, 400)'   evenly spaced numbers
  'x=np.float32([0.5, 2])'      an array of another dtype than float64
  'x=np.load("x.npy")'          an array that numpy.save wrote
  n=3                           a number, or another static value"""


EXAMPLES = """\
examples:
  keras-cg info
  keras-cg check rules.py:softplus --arg 'x=rng.normal(size=(4, 3))'
  keras-cg check rules.py --fast
  keras-cg plot rules.py:softplus --arg 'x=np.linspace(-5, 5, 400)' -o softplus.png"""

# The packages of the extra "cli", which the commands need in addition to those of keras_cg.
EXTRAS = ("matplotlib", "rich", "scipy")

COMMANDS = ("info", "check", "plot")

# The exit status that a shell reports for SIGPIPE: 128 plus its number. Python on Windows has no such signal.
BROKEN_PIPE = 141

OUTPUT_LOST = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT)


class _Parser(argparse.ArgumentParser):
    """Reports a wrong option like every other usage error, in one line."""

    def error(self, message: str) -> NoReturn:
        raise messages.UsageError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: The words after `keras-cg`; None for those of this process.

    Returns:
        The exit status: 0 for success, 1 for a wrong or undecided gradient or a backend that failed, 2 for a usage
        error, 130 after Ctrl-C, 141 if the reader of the output has closed it.

    Raises:
        SystemExit: The words ask for help or the version.
    """
    words = sys.argv[1:] if argv is None else [*argv]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal cannot show must not raise
    try:
        try:
            return _run(words)
        finally:
            if sys.stdout is not None:  # `>&-` closes it
                sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        # rich (15) exits with status 1 after a broken pipe.
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
        parser = _parser()
        if not words:
            parser.print_help()
            return 0
        options = parser.parse_args(words)
        as_json = getattr(options, "json", False)
        # Imported late, because rich and matplotlib are extras, which another command may not need.
        status = int(importlib.import_module(f"keras_cg.command.{options.command}").run(options))
        for spec, expression in specs.old.items():
            output.complain(f"keras-cg: {messages.old_spec(spec, expression)}")
        return status
    except messages.UsageError as error:
        return _refuse(words, error, as_json)
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        return _refuse(words, messages.missing_extra(module), as_json)


def _lose_output(error: OSError) -> int:
    """Returns the exit status after an error of the standard output."""
    # Python flushes the standard output again at exit, which would raise again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    output.complain(f"keras-cg: {messages.output_lost(error.strerror or str(error))}")
    return 2


def _refuse(words: Sequence[str], error: messages.UsageError, as_json: bool) -> int:
    """Reports a usage error, with `--json` also as JSON."""
    name = " ".join(["keras-cg", *[each for each in words[:1] if each in COMMANDS]])
    output.complain(f"{name}: {error}")
    if as_json:
        output.write_json({"error": str(error), **error.data})
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="keras-cg",
        description="Checks and draws custom gradients on every installed backend.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"keras-cg {keras_cg.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_info(commands)
    _add_check(commands)
    _add_plot(commands)
    return parser


def _add_info(commands: Any) -> None:
    parser = commands.add_parser("info", help="show versions, backends and devices; which backend is active, and why")
    parser.add_argument("--json", action="store_true", help="write JSON")


def _add_check(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="check a custom gradient on every backend, each in a process of its own",
        description="Checks a custom gradient on every backend: against finite differences, and between backends.",
        epilog=ARGUMENTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_common(parser, "FILE.py:FUNCTION or MODULE:FUNCTION; without FUNCTION, all functions that have `example_args`")
    parser.add_argument("--value", metavar="TARGET", help="a function that returns the right output")
    parser.add_argument(
        "--fast", action="store_true", help="check random directions only, and neither compile nor export: for a hook"
    )
    parser.add_argument(
        "--order", type=int, choices=(1, 2, 3, 4), default=2, help="the highest derivative (default: 2)"
    )
    parser.add_argument(
        "--modes", type=_modes, default=("reverse", "forward"), help="reverse, forward or both (default: both)"
    )
    parser.add_argument(
        "--no-compiled", dest="compiled", action="store_false", help="skip the checks `compiled` and `export`"
    )
    parser.add_argument("--strict", action="store_true", help="fail if a decorated function of TARGET was not checked")
    parser.add_argument("--json", action="store_true", help="write only JSON to the standard output")


def _add_plot(commands: Any) -> None:
    parser = commands.add_parser(
        "plot",
        help="draw a function, its custom gradient and the numerical one over a range",
        description="Draws a function, its custom gradient and the numerical one, and marks where the two differ.",
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
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=EXPRESSION", help="an argument, see below")
    parser.add_argument("--backends", type=_backends, default=None, help="separated by commas (default: all installed)")
    parser.add_argument(
        "--expected",
        metavar="TARGET",
        help="a function whose derivative the gradient should equal, or a rule with a parameter `upstream`",
    )
    parser.add_argument("--seed", type=_seed, default=0, help="the seed of all random numbers (default: 0)")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="limit for each function and backend (default: 300)",
    )


def _backends(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in backends.names():
            raise argparse.ArgumentTypeError(str(engine_messages.unknown_backend(name, "--backends", backends.names())))
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
