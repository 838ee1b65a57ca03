"""The examples of several devices, as modules and as commands; each test starts processes of its own."""

import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import keras_cg

ROOT = Path(keras_cg.__file__).parents[1]
EXAMPLES = ROOT / "examples" / "distributed"


class Processes:
    """Commands and programs, run as a user does: in a folder, on one backend."""

    def __init__(self, folder, backend):
        self.folder, self.backend = folder, backend

    def start(self, *command):
        """A command, in a session of its own: what it starts ends with it."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLES), str(Path(__file__).parent)]),
            "KERAS_CG_BACKEND": self.backend,
            "JAX_PLATFORMS": "cpu",
        }
        return subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def run(self, *command, limit=300):
        """What a command printed and how it ended."""
        return self.ended([self.start(*command)], limit)[0]

    def two(self, program, *arguments, limit=240):
        """The same of two processes without anybody who watches over them: each gets its rank, and an address."""
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        return self.ended([self.start(program, rank, address, *arguments) for rank in range(2)], limit)

    @staticmethod
    def ended(running, limit):
        """How all of these ended.

        Raises:
            subprocess.TimeoutExpired: After `limit` seconds one still runs. By then none does any more.
        """
        end = time.monotonic() + limit
        with concurrent.futures.ThreadPoolExecutor() as readers:  # a process may wait until its output is read
            reading = [readers.submit(each.communicate, timeout=end - time.monotonic()) for each in running]
            concurrent.futures.wait(reading)
            for each in running:
                if each.poll() is None:
                    os.killpg(each.pid, signal.SIGKILL)
                    each.wait()
        printed = [each.result() for each in reading]
        return [
            subprocess.CompletedProcess(each.args, each.returncode, *texts)
            for each, texts in zip(running, printed, strict=True)
        ]

    def torchrun(self, *command, limit=300):
        """The same in two processes of torch."""
        return self.run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command, limit=limit)

    def program(self, text, name="program"):
        """A file in the folder: processes import it again, and inductor and autograph read it."""
        path = self.folder / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        return path


@pytest.fixture
def processes(tmp_path, backend):
    return Processes(tmp_path, backend)
