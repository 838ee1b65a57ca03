"""A sample of the outputs of a run, to compare another run with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from keras_cg.engine import messages, precision
from keras_cg.engine.defaults import is_repeated_later
from keras_cg.engine.precision import is_repeated


class Sample:
    """A sample of the outputs of a run. Where a framework traces the function, it has tensors instead of arrays."""

    # At most twice as many elements of each output: a run that differs at all nearly always differs in one of them.
    SIZE = 64

    def __init__(self, backend: Any, outputs: Sequence[Any]):
        self.backend, self.is_known = backend, backend.is_known(outputs)
        self.values = [self._of(output) if self.is_known else self._later(output) for output in outputs]

    def _of(self, output: Any) -> numpy.ndarray:
        values = self.backend.to_numpy(output).reshape(-1)
        return values[:: max(1, len(values) // self.SIZE)].copy()  # type: ignore[no-any-return]

    def _later(self, output: Any) -> Any:
        row = self.backend.namespace.reshape(output, (-1,))
        # A length that is unknown until run time is None.
        return row[:: max(1, (self.backend.shape(row)[0] or 0) // self.SIZE)]

    def compare(self, function: str, outputs: Sequence[Any]) -> list[Any]:
        """Compares another run; returns the conditions that must hold where a framework traces the function.

        Raises:
            RuntimeError: The outputs differ.
        """
        if not self.is_known or not self.backend.is_known(outputs):
            pairs = zip(map(self._later, outputs), map(self.backend.asarray, self.values), strict=True)
            return [is_repeated_later(self.backend, *pair, function) for pair in pairs]
        for output, value in zip(outputs, self.values, strict=True):
            if not is_repeated(self._of(output), value, precision.of(self.backend.dtype(output)).repeated):
                raise messages.recomputed_otherwise(function)
        return []
