"""What may come of a program: the right number, or a clear error; never another number."""

import re

import numpy as np


def right_or_refused(call, expected, *exceptions, match="", rtol=1e-5):
    """Whether `call` gave what is expected; else it raised one of `exceptions` with a text that fits `match`."""
    try:
        came = call()
    except exceptions as error:
        if not re.search(match, str(error)):
            raise
        return False
    np.testing.assert_allclose(np.asarray(came), expected, rtol=rtol)
    return True
