"""What the command writes: on terminals of any width, to readers that leave, to a full disk, and while it works."""

import io
import json
import math
import os
import pty
import subprocess
import sys
import threading
import time

import pytest

from command.command_runs import QUICK, TARGETS, environment, start_check
from keras_cg.command import check as check_command
from keras_cg.command import info, output, progress
from keras_cg.testing.report import Finding

pytestmark = pytest.mark.only("numpy")


def test_a_terminal_shows_how_far_it_is():
    command = [sys.executable, "-m", "keras_cg", "check", "unruly.py:slow", "--arg", "x=rng.normal(size=3)", *QUICK]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(TARGETS)
        os.execvpe(command[0], command, {**environment(), "TERM": "xterm-256color", "PYTHONWARNINGS": "ignore"})
    shown = b""
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    text = shown.decode()
    assert "of 8 checks" in text and any(mark in text for mark in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏") and "\x1b[32m✓" in text


@pytest.fixture
def watched(monkeypatch):
    """What the standard error shows, which is a terminal, and how long the work must take."""

    def make(delay, isatty=True):
        stream = io.StringIO()
        stream.isatty = lambda: isatty
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(progress, "DELAY", delay)
        monkeypatch.setenv("TERM", "xterm-256color")
        return stream

    return make


def test_work_is_shown_on_the_standard_error_and_taken_away(watched, capsys):
    stream = watched(0)
    with progress.shown(lambda: progress.bar(3, 8, "checks")):
        for _ in range(6000):  # a minute at most
            if "3 of 8 checks" in stream.getvalue():
                break
            time.sleep(0.01)
    # Where it stood, the line is cleared, and the cursor is back.
    assert "\x1b[2K" in stream.getvalue().rpartition("checks")[2] and stream.getvalue().count("\x1b[?25h") == 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("delay", "isatty", "term", "has_rich"),
    [(3600, True, "xterm", True), (0, False, "xterm", True), (0, True, "dumb", True), (0, True, "xterm", False)],
    ids=["short work", "no terminal", "a dumb one", "no Rich"],
)
def test_work_without_a_progress_bar(watched, monkeypatch, delay, isatty, term, has_rich):
    stream = watched(delay, isatty)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    with progress.shown(lambda: progress.bar(3, 8, "checks")):
        timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
        assert delay or not has_rich or timers == []
    assert stream.getvalue() == "" and not any(each.is_alive() for each in timers)


def test_skip_is_what_was_not_reached_and_a_dash_what_does_not_apply(monkeypatch, capsys):
    from keras_cg.command import tables as drawn
    from keras_cg.testing.report import NOT_REACHED

    monkeypatch.setenv("COLUMNS", "100")
    board = check_command.Board("f.py:f", ["numpy", "torch"], functions=["f"], done={("f", "numpy"), ("f", "torch")})
    board.found("f", "numpy")[:] = [
        Finding("numpy", "value", "passed"),
        Finding("numpy", "compiled", "skipped", reason="numpy has no compiler"),
    ]
    board.found("f", "torch")[:] = [
        Finding("torch", "value", "failed"),
        Finding("torch", "compiled", "skipped", reason=NOT_REACHED[0]),
    ]
    drawn.show(board)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "│ compiled" in line]
    assert row.replace("│", " ").split() == ["compiled", "–", "skip"]  # noqa: RUF001 - a dash is intended


@pytest.mark.parametrize(("columns", "tables"), [(100, 1), (60, 2), (40, 4), (20, 4)])
def test_no_backend_disappears_from_a_narrow_terminal(monkeypatch, capsys, columns, tables):
    from keras_cg.command import tables as drawn

    monkeypatch.setenv("COLUMNS", str(columns))
    names = ("jax", "numpy", "tensorflow", "torch")
    board = check_command.Board("f.py:f", list(names), functions=["f"])
    for each in names:
        board.found("f", each).append(Finding(each, "first order", "passed", error=1e-7))
    drawn.show(board)
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if line[:1] in "╭│├╰"]
    heads = [line.replace("│", " ").split() for line in lines if line.startswith("│ check")]
    assert len(heads) == tables and [name for each in heads for name in each[1:]] == [*names]
    assert shown.count("✓ 1e-7") == 4 and "…" not in shown
    assert all(len(line) <= max(columns, 31) for line in lines)


@pytest.mark.parametrize("columns", [100, 40, 20])
def test_info_leaves_nothing_out_on_a_narrow_terminal(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    found = [
        {"name": "jax", "installed": False, "version": None},
        {
            "name": "tensorflow",
            "installed": True,
            "version": "2.21.0",
            "devices": [f"GPU:{number}" for number in range(8)],
        },
        {"name": "torch", "installed": True, "version": "2.13.0+cpu", "problem": "torch: ImportError"},
    ]
    info._show({"active": "tensorflow", "because": "a test", "backends": found, "untested": []})
    shown = capsys.readouterr().out
    words = {word.strip(",") for line in shown.splitlines() for word in line.replace("│", " ").split()}
    assert {"jax", "tensorflow", "torch", "2.21.0", "2.13.0+cpu", "active", "GPU:0", "GPU:7"} <= words
    assert '"keras-cg[jax]"' in words and "…" not in shown


def test_a_terminal_without_unicode():
    done = start_check(
        "planted.py:kinked", "--arg", "x=np.linspace(-1, 1, 3)", "--order", "2", PYTHONIOENCODING="ascii"
    )
    assert done.returncode == 1 and "ok" in done.stdout and done.stdout.isascii()
    assert done.stdout.splitlines()[-1] == "? undecided: kinked"


def piped(words, output, unbuffered):
    """The exit status and the standard error of a command that writes to `output`."""
    command = [sys.executable, "-m", "keras_cg", *words]
    env = {**environment(), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, env=env, cwd=TARGETS)
    return done.returncode, done.stderr


WRITERS = {
    "check": ["check", "planted.py:power", *QUICK],
    "check --json": ["check", "planted.py:power", *QUICK, "--json"],
    "--version": ["--version"],
}


# With a buffer and without one.
PIPED = [("check", ""), ("check --json", "1"), ("--version", "")]


@pytest.mark.parametrize(("name", "unbuffered"), PIPED)
def test_a_reader_that_leaves_is_no_disagreement_and_an_output_without_room_is_told(name, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert piped(WRITERS[name], writer, unbuffered) == (141, "")
    finally:
        os.close(writer)
    told = "cannot write to the standard output: No space left on device; redirect it, or free some space"
    with open("/dev/full", "w") as full:
        assert piped(WRITERS[name], full, unbuffered) == (2, f"keras-cg: {told}\n")


def test_no_standard_error_at_all():
    command = [sys.executable, "-m", "keras_cg", "check", "planted.py:powr", "--json"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command], stdout=subprocess.PIPE, env=environment(), cwd=TARGETS
    )
    assert done.returncode == 2 and json.loads(done.stdout)["error"].startswith("planted.py has no 'powr'")


def test_json_has_no_nan():
    found = {"findings": [{"error": math.nan, "tolerance": 1e-6}], "more": (math.inf, "nan", None)}
    assert output._strict(found) == {"findings": [{"error": None, "tolerance": 1e-6}], "more": [None, "nan", None]}
