"""The examples of several devices, as modules and as commands; each test starts processes of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import keras_cg

ROOT = Path(keras_cg.__file__).parents[1]
EXAMPLES = ROOT / "examples" / "distributed"


class Processes:
    """Commands and programs, run as a user does: in a folder, on one backend."""

    def __init__(self, folder, backend):
        self.folder, self.backend = folder, backend

    def run(self, *command, limit=300):
        """What a command printed and how it ended; whatever it has started ends with it."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLES), str(Path(__file__).parent)]),
            "KERAS_CG_BACKEND": self.backend,
            "JAX_PLATFORMS": "cpu",
        }
        running = subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            stdout, stderr = running.communicate(timeout=limit)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
        return subprocess.CompletedProcess(running.args, running.returncode, stdout, stderr)

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
