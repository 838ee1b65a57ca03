"""One call of a function whose derivative is asked for, as a backend sees it: from tensors to tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from keras_cg.autodiff import messages
from keras_cg.bridge import keras_interop, keras_scope
from keras_cg.engine.precision import is_differentiable
from keras_cg.errors import article, type_name
from keras_cg.frontend import config, pytree
from keras_cg.frontend.pytree import compatible, describe
from keras_cg.frontend.tree import Tree

_COMPLEX = {"float32": "complex64", "float64": "complex128"}
_REAL = {kind: real for real, kind in _COMPLEX.items()}


def _scalars(value: Any) -> int:
    """Counts the numbers in nested lists; 0 if there is anything else."""
    if isinstance(value, (list, tuple)):
        counts = [*map(_scalars, value)]
        return sum(counts) if all(counts) else 0
    return int(isinstance(value, (int, float, complex)))


class Run:
    """One call of a function as a backend sees it, `run(*tensors) -> (outputs, aux)`.

    It maps the floating tensors among some of the arguments to those in the output; aux is the other tensors there.
    """

    # Whether every number and tensor among the differentiated arguments must have a gradient.
    is_strict = False

    def __init__(self, where: str, f: Callable[..., Any], args: Any, kwargs: Any, indices: Sequence[int]):
        self.backend = config.active
        keras_scope.stop_gradients(self.backend)
        self.where, self.f, self.indices = where, f, indices
        self.__name__ = where  # for messages of a backend
        self.args = [*map(self._convert, args)]
        self.kwargs = {name: self._convert(value) for name, value in kwargs.items()}
        self.tensors, self.arguments = self._differentiated(tuple(self.args[index] for index in indices))
        # The output without its differentiated tensors, and where its other tensors stand.
        self.output: Tree
        self.others: list[int]

    def __call__(self, *tensors: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the differentiated tensors of the output, and its others, at new values of the arguments."""
        args = self.args.copy()
        for index, value in zip(self.indices, self.arguments.combine(tensors), strict=True):
            args[index] = value
        try:
            value = self.f(*args, **self.kwargs)
        except Exception as error:
            self._note_lists(error, self.indices)
            raise
        return self.read(value)

    def _convert(self, value: Any) -> Any:
        """Returns a pytree with tensors in the place of those NumPy arrays of numbers that are none to the backend."""
        backend = self.backend
        tree = pytree.flatten(value, backend)
        arrays = [
            # Copied, because torch (2.13) warns of read-only memory, and refuses negative strides.
            (place, numpy.array(leaf, leaf.dtype.newbyteorder("="), order="C"))
            for place, leaf in enumerate(tree.leaves)
            if isinstance(leaf, (numpy.ndarray, numpy.generic))
            and leaf.dtype.kind in "biufc"
            and not (backend.is_tensor(leaf) and leaf.dtype.isnative)
        ]
        if not arrays:
            return value
        return tree.fill([place for place, _ in arrays], [backend.asarray(array) for _, array in arrays])

    def _note_lists(self, error: Exception, indices: Sequence[int]) -> None:
        """Adds to an error that an argument is a list of numbers, which may have been meant as one tensor."""
        for index in indices:
            value = self.args[index]
            scalars = _scalars(value) if isinstance(value, (list, tuple)) else 0
            if scalars:
                error.add_note(messages.list_of_numbers(self.where, f"argument {index}", value, scalars))

    def read(self, value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the tensors that the function returned: those that are differentiated, and the others."""
        outputs, aux = self._flatten(value, "the output{}".format, is_all=True)
        if not outputs:
            raise messages.no_floating_output(self.where, self._describe(value))
        return outputs, aux

    def _flatten(
        self, value: Any, label: Callable[[str], str], is_all: bool
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Partitions an output; of `(output, aux)`, where not all is differentiated, the first leaf alone is."""
        tree = pytree.flatten(value, self.backend)
        tensors = pytree.partition(self.backend, self.where, tree, lambda tree, place: label(tree.paths()[place]))
        marked = [
            (place, tensor, is_differentiable(self.backend.dtype(tensor)) and (is_all or place == 0))
            for place, tensor in zip(tree.places, tensors, strict=True)
        ]
        tree.places = [place for place, _, is_active in marked if is_active]
        self.output = tree
        self.others = [place for place, _, is_active in marked if not is_active]
        return (
            tuple(tensor for _, tensor, is_active in marked if is_active),
            tuple(tensor for _, tensor, is_active in marked if not is_active),
        )

    def result(self, outputs: Sequence[Any], aux: Sequence[Any]) -> Any:
        """Returns the output with the tensors that the backend returned for it."""
        values = dict(zip([*self.output.places, *self.others], [*outputs, *aux], strict=True))
        places = sorted(values)
        return self.output.fill(places, [values[place] for place in places])

    def like_arguments(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Returns a pytree like each of the arguments: one of `values` for each tensor, and None elsewhere."""
        return self.arguments.blank(values)  # type: ignore[no-any-return]

    def fit(self, name: str, value: Any, tree: Tree, tensors: Sequence[Any], model: str) -> list[Any]:
        """Returns a tensor for each of `tensors`, of its dtype: the leaves at their places in `value`.

        Raises:
            ValueError: `value` has another structure than `tree`, or a leaf another shape or kind than its tensor.
        """
        # Here, because it imports optree: see `containers`.
        from keras_cg.frontend import readings

        backend, places = self.backend, tree.places
        misfit = functools.partial(messages.not_the_pytree, self.where, name, model)
        aligned = readings.aligned(self._convert(value), tree, backend, misfit)

        def label(_: Tree, index: int) -> str:
            return name + tree.paths()[places[index]]

        row = Tree([aligned[place] for place in places])
        partitioned = pytree.partition(backend, self.where, row, label)
        parts = dict(zip(row.places, partitioned, strict=True))
        return [
            self._fit_leaf(parts.get(index, row.leaves[index]), tensor, functools.partial(label, row, index), model)
            for index, tensor in enumerate(tensors)
        ]

    def _fit_leaf(self, leaf: Any, tensor: Any, label: Callable[[], str], model: str) -> Any:
        """Returns an upstream or a tangent as a tensor of the dtype of the tensor that it belongs to."""
        backend = self.backend
        dtype, shape = backend.dtype(tensor), backend.shape(tensor)
        if leaf is None:
            return backend.namespace.zeros_like(tensor)
        kind, size = "", None
        if backend.is_tensor(leaf):
            kind, size = backend.dtype(leaf), backend.shape(leaf)
        elif isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool):
            kind, size = "complex" if isinstance(leaf, complex) else "float", ()
        is_too_complex = kind.startswith("complex") and not dtype.startswith("complex")
        if not is_differentiable(kind) or is_too_complex or not compatible(size, shape):
            raise messages.not_alike(self.where, label(), model, self._describe(leaf), describe(dtype, shape))
        if not backend.is_tensor(leaf):
            return backend.namespace.ones_like(tensor) * (leaf if kind == "complex" else float(leaf))
        leaf = backend.asarray(leaf)
        return leaf if kind == dtype else backend.cast(leaf, dtype)

    def _describe(self, value: Any) -> str:
        """Describes a value for a message."""
        if self.backend.is_tensor(value):
            return describe(self.backend.dtype(value), self.backend.shape(value))
        return article(type_name(value))

    def _differentiated(self, value: tuple[Any, ...]) -> tuple[list[Any], Tree]:
        """Returns the differentiated tensors among the arguments, and the static part of these."""
        backend, tree = self.backend, pytree.flatten(value, self.backend)
        for place, leaf in enumerate(tree.leaves):
            if isinstance(leaf, (int, float, complex)) and not backend.is_tensor(leaf):
                if not isinstance(leaf, int):
                    tree.leaves[place] = self._number(leaf)
                elif self.is_strict:
                    raise self._not_differentiable(tree, place, leaf)
        tensors = pytree.partition(backend, self.where, tree, self._label)
        active, places = [], []
        for place, tensor in zip(tree.places, tensors, strict=True):
            if is_differentiable(backend.dtype(tensor)):
                places.append(place)
                active.append(tensor)
            elif self.is_strict:
                raise self._not_differentiable(tree, place, tensor)
            else:
                tree.leaves[place] = tensor
        if not active:
            raise messages.nothing_to_differentiate(self.where)
        tree.places = places
        return active, tree

    def _number(self, value: float | complex) -> Any:
        """Returns a number as a tensor: in the dtype of the first floating tensor among the arguments, if there is one.

        TensorFlow (2.21) multiplies no tensors of two dtypes; without another tensor it is the dtype that `ops` gives.
        """
        backend = self.backend
        leaves = pytree.flatten((*self.args, *self.kwargs.values()), backend).leaves
        dtypes = [backend.dtype(leaf) for leaf in map(keras_interop.unwrap, leaves) if backend.is_tensor(leaf)]
        tensor = backend.namespace.asarray(value)
        first = next(filter(is_differentiable, dtypes), backend.dtype(tensor))
        kind = _REAL.get(first, first)
        if isinstance(value, complex):
            kind = _COMPLEX.get(kind, "complex64")
        return tensor if backend.dtype(tensor) == kind else backend.cast(tensor, kind)

    def _not_differentiable(self, tree: Tree, place: int, leaf: Any) -> TypeError:
        error = messages.not_differentiable(self.where, self._label(tree, place), self._describe(leaf))
        self._note_lists(error, [self._index(tree, place)])
        return error

    def _label(self, tree: Tree, place: int) -> str:
        _, _, inside = tree.paths()[place].partition("]")
        return f"argument {self._index(tree, place)}{inside}"

    def _index(self, tree: Tree, place: int) -> int:
        return self.indices[int(tree.paths()[place][1:].partition("]")[0])]


class LossRun(Run):
    """One call of a function for `grad`: its result is the pair `(output, aux)`."""

    is_strict = True

    def __init__(
        self, where: str, f: Callable[..., Any], args: Any, kwargs: Any, indices: Sequence[int], has_aux: bool
    ):
        super().__init__(where, f, args, kwargs, indices)
        self.has_aux = has_aux

    def read(self, value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the loss, and the tensors of aux."""
        output, aux = value, None
        if self.has_aux:
            if not isinstance(value, (tuple, list)) or len(value) != 2:
                raise messages.no_aux(self.where, article(type_name(value)))
            output, aux = value
        kind = self.backend.dtype(output) if self.backend.is_tensor(output) else ""
        if not is_differentiable(kind) or kind.startswith("complex"):
            raise messages.not_a_scalar_output(self.where, self._describe(output))
        return self._flatten((output, aux), lambda path: f"aux{path.removeprefix('[1]')}", is_all=False)


class RealRun(Run):
    """One call of a function for a Jacobian, which refuses complex numbers."""

    is_strict = True

    def __init__(self, where: str, f: Callable[..., Any], args: Any, kwargs: Any, indices: Sequence[int]):
        super().__init__(where, f, args, kwargs, indices)
        for place, tensor in zip(self.arguments.places, self.tensors, strict=True):
            self._refuse_complex(tensor, functools.partial(self._label, self.arguments, place))

    def read(self, value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the real tensors of the output, and its others."""
        outputs, aux = super().read(value)
        for place, output in zip(self.output.places, outputs, strict=True):
            self._refuse_complex(output, functools.partial(self._output_label, place))
        return outputs, aux

    def _output_label(self, place: int) -> str:
        return f"the output{self.output.paths()[place]}"

    def _refuse_complex(self, tensor: Any, label: Callable[[], str]) -> None:
        if self.backend.dtype(tensor).startswith("complex"):
            raise messages.complex_jacobian(self.where, label(), self._describe(tensor))
