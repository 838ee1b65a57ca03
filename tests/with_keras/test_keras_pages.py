"""docs/tutorial.md, keras.md and migration.md: the code runs on every backend, and says where the code before does."""

import os
import pathlib
import re
import subprocess
import sys

import pages
import pytest
from export import WARNINGS

ROOT = pathlib.Path(__file__).parent.parent.parent
pytestmark = WARNINGS
MIGRATION = ROOT / "docs" / "migration.md"
# The code before, where it is said to be right, and the code after, whose last lines show that it is.
PAIRS = re.compile(r"<!-- before:(.*?)-->\n```py\n(.*?)```.*?```python\n(.*?)```", re.DOTALL)


def run_with_keras(backend, source, folder):
    """Whether a script runs with Keras on that backend, and what it says."""
    path = folder / "script.py"
    path.write_text(source)
    pythonpath = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_CG_BACKEND"}
    environment |= {"KERAS_BACKEND": backend, "PYTHONPATH": pythonpath}
    done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout + done.stderr


@pytest.mark.filterwarnings("ignore:overflow")
def test_the_code_of_the_tutorial(backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run(ROOT / "docs" / "tutorial.md", tmp_path)


@pytest.mark.parametrize("page", ["keras", "migration"])
def test_the_code_of_a_page(backend, page, tmp_path):
    path = str(MIGRATION.with_stem(page))
    source = f"import pages, pathlib; pages.run(pathlib.Path({path!r}), pathlib.Path({str(tmp_path)!r}))"
    ran, printed = run_with_keras(backend, source, tmp_path)
    assert ran, printed


def test_the_code_before_a_migration(backend, tmp_path):
    """Every one in a scope of its own, with what is asserted of the code after; all in one process."""
    pairs = PAIRS.findall(MIGRATION.read_text())
    assert len(pairs) == 11
    claimed, scripts = [], []
    for right, before, after in pairs:
        lines = [line for line in after.splitlines() if line.startswith(("gradient =", "assert "))]
        assert lines[-1].startswith("assert ")
        claimed.append(backend in right.split())
        scripts.append("\n".join([before, *lines]))
    source = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import sys; sys.stdout.reconfigure(encoding='utf-8')\n"
        f"scripts = {scripts!r}\n"
        "for script in scripts:\n"
        "    scope = {}\n"
        "    try:\n"
        "        exec('import keras, keras_cg\\nfrom keras import ops\\n' + script, scope)\n"
        "        print('RIGHT', True)\n"
        "    except Exception as error:\n"
        "        print('RIGHT', False, repr(error)[:200])\n"
    )
    ran, told = run_with_keras(backend, source, tmp_path)
    found = [line.split()[1] == "True" for line in told.splitlines() if line.startswith("RIGHT")]
    assert ran and found == claimed, told
