"""Finds the user's own code in a traceback, for messages that name its file and line."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path


def is_users(filename: str) -> bool:
    """Whether a file is the user's: not part of Python, of an installed package, or of keras_cg."""
    paths = sysconfig.get_paths()
    installed = (paths["stdlib"], paths["purelib"], paths["platlib"], str(Path(__file__).parent) + os.sep)
    # Cython's frames have the relative path of the file at build time; AutoGraph of TensorFlow (2.21) writes the code
    # that it rewrites to a temporary file.
    is_generated = "__autograph_generated_file" in filename
    return os.path.isabs(filename) and not filename.startswith(installed) and not is_generated


def innermost(error: BaseException) -> traceback.FrameSummary | None:
    """Returns the innermost frame of user code in the traceback of an exception; None if there is none."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if is_users(each.filename)]
    return frames[-1] if frames else None
