"""What a target may do to its process: the command tells it in one line, goes on, and leaves no process behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from _keras_cg import command as script
from command.command_runs import QUICK, environment, ghost, refused, report, start, start_check

pytestmark = pytest.mark.only("numpy")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("crashes", "✗ numpy: the process died of SIGSEGV while checking 'value' of crashes, in unruly.py:"),
        ("killed", "✗ numpy: the process died of SIGKILL while checking 'value' of killed; usual cause: out of memory"),
        ("exits", "✗ numpy: the process exited with status 3 while checking 'value' of exits; the function must not"),
        ("leaves", "✗ numpy: SystemExit: leaving (unruly.py:"),
        ("hungry", "MemoryError"),
    ],
)
def test_a_process_that_ends_is_told_in_one_line(name, told):
    done = start_check(f"unruly.py:{name}", "--arg", "x=rng.normal(size=3)")
    assert done.returncode == 1 and done.stderr == ""
    assert sum(told in line for line in done.stdout.splitlines()) == 1, done.stdout


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "Unspeakable"])
def test_whatever_a_target_raises_is_told_as_that(check, tmp_path, kind):
    source = f"""
import keras_cg

class Unspeakable(Exception):
    def __str__(self):
        raise ValueError

def raising():
    raise {kind}

@keras_cg.custom_gradient
def f(x):
    raise {kind}
"""
    (tmp_path / "raises.py").write_text(source)
    name = f"raises.{kind}" if kind == "Unspeakable" else kind
    if kind != "Unspeakable":  # the checker tells an exception as its message has it
        done = check(f"{tmp_path}/raises.py:f", "--arg", "x=rng.normal(size=3)")
        assert done.returncode == 1 and f"✗ numpy: {name} (raises.py:" in done.stdout, done.stdout
    (tmp_path / "raises.py").write_text(source + "\nraising()\n")
    refused(
        check(f"{tmp_path}/raises.py:f", "--arg", "x=rng.normal(size=3)"), f"cannot be imported: {name} (raises.py:9)"
    )


@pytest.mark.side_by_side
def test_the_other_backends_go_on(several):
    others = [name for name in several if name != "numpy"]
    names = ",".join(["numpy", *others])
    words = ("unruly.py:crashes_on_numpy", "--arg", "x=rng.normal(size=3)", "--order", "1", "--no-compiled", "--json")
    done = start("check", *words, "--backends", names)
    (problem,) = json.loads(done.stdout)["problems"]
    assert done.returncode == 1 and problem["backend"] == "numpy" and problem["function"] == "crashes_on_numpy"
    assert any("Segmentation fault" in line for line in problem["stderr"])
    found = report(done)["findings"]
    assert {each["backend"] for each in found} == set(others)
    assert {each["status"] for each in found} <= {"passed", "skipped"}


def test_the_functions_after_one_that_kills_its_process():
    done = start_check("unruly_module.py", "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 1
    assert [each["status"] for each in data["reports"]] == ["passed", "skipped", "skipped", "passed"]
    killed, left = data["problems"]
    assert killed["function"] == "second" and "died of SIGABRT while checking 'value' of second" in killed["message"]
    assert killed["stderr"][-1] == "last words"
    assert left["function"] == "third" and left["message"].startswith("numpy: SystemExit: leaving (unruly_module.py:")


def test_what_a_module_prints_is_not_in_the_report():
    for name in ("talks", "reads"):
        done = start_check(f"unruly.py:{name}", "--arg", "x=rng.normal(size=3)", "--json")
        assert done.returncode == 0 and report(done)["status"] == "passed"
        assert "printed" not in done.stdout + done.stderr


def test_a_backend_that_does_not_start(tmp_path):
    (tmp_path / "jax.py").write_text("raise RuntimeError('broken on purpose')\n")
    done = start("check", "planted.py:power", "--backends", "numpy,jax", *QUICK[2:], folder=tmp_path)
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("✗ jax: ")]
    told = "the backend 'jax' (from keras-cg) is installed but does not start: RuntimeError: broken on purpose"
    assert f"ImportError: {told}; check that its framework can be imported by itself; reinstall it with pip" in line
    assert "first order" in done.stdout and done.stdout.endswith("stopped: jax\n")


def test_a_backend_that_is_not_installed(tmp_path):
    ghost(tmp_path)
    line = 'ghost: not installed: pip install "ghost"'
    done = start("check", "planted.py:power", "--backends", "numpy,ghost", *QUICK[2:], folder=tmp_path)
    assert done.returncode == 2 and f"? {line}\n" in done.stdout and "│ ✓ " in done.stdout
    assert done.stdout.endswith("not installed: ghost\n")
    refused(start("check", "planted.py:power", "--backends", "ghost", folder=tmp_path), line)


def is_running(pid):
    try:
        # A process that ended without being waited for is over.
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def deserter(tmp_path):
    """A target that leaves processes behind, which hold what it holds, and hangs: its file, and what finds the ids."""
    source = f"""
import os, pathlib, subprocess, time
import keras_cg

def note(what, pid):
    (pathlib.Path({str(tmp_path)!r}) / f"{{what}} {{pid}}").touch()

@keras_cg.custom_gradient
def f(x):
    note("left", subprocess.Popen(["sleep", "600"]).pid)
    note("escaped", subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    note("worker", os.getpid())
    time.sleep(600)
"""
    (tmp_path / "deserter.py").write_text(source)
    ids = lambda: {name: int(pid) for name, pid in (path.name.split() for path in tmp_path.glob("* *"))}
    yield f"{tmp_path}/deserter.py:f", ids
    os.kill(ids()["escaped"], signal.SIGKILL)


def assert_ends(*pids):
    for _ in range(600):
        if not any(map(is_running, pids)):
            return
        time.sleep(0.05)
    pytest.fail("a process is still there")


def test_what_a_target_leaves_behind_is_ended_and_what_escapes_is_not_waited_for(deserter):
    target, ids = deserter
    done = start_check(target, "--arg", "x=rng.normal(size=3)", "--timeout", "3")
    told = "✗ numpy: not done after 3 s while checking 'value' of f, in deserter.py:"
    assert done.returncode == 1 and told in done.stdout and "a larger --timeout" in done.stdout
    assert done.stderr == "" and is_running(ids()["escaped"])
    assert_ends(ids()["left"], ids()["worker"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_command(number, deserter):
    target, ids = deserter
    command = [sys.executable, "-m", "keras_cg", "check", target, "--arg", "x=rng.normal(size=3)", *QUICK]
    # What a shell starts in the background ignores the signal, and so would all that is started from there.
    process = subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while "worker" not in ids():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == (130 if number == signal.SIGINT else -number) and told == b""
    assert is_running(ids()["escaped"])
    assert_ends(ids()["left"], ids()["worker"])


def test_the_copy_of_a_target_that_forks_tells_nothing(tmp_path):
    source = """
import os, time
import keras_cg

waits = [1] if os.fork() else []  # the original is later, and once

@keras_cg.custom_gradient
def right(x):
    return x, lambda upstream: upstream

@keras_cg.custom_gradient
def wrong(x):
    time.sleep(waits.pop() if waits else 0)
    return x, lambda upstream: 7 * upstream

right.example_args = wrong.example_args = {"x": "rng.normal(size=3)"}
"""
    (tmp_path / "forks.py").write_text(source)
    done = start_check(f"{tmp_path}/forks.py", "--json")
    assert [each["status"] for each in json.loads(done.stdout)["reports"]] == ["passed", "failed"]


def test_ctrl_c_while_the_command_is_imported(tmp_path):
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt\n")
    code = f"import sys; from {script.__name__} import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("where", ["keras_cg.command._parser", "keras_cg.command.check.run"])
def test_ctrl_c_wherever_the_command_is(check, monkeypatch, where):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupted)
    done = check("planted.py:power")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
