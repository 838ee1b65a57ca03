"""One call of a function whose derivative is asked for, as a backend sees it: from tensors to tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from keras_cg import config, keras_scope, pytree
from keras_cg.autodiff import messages
from keras_cg.engine.precision import is_differentiable
from keras_cg.errors import article, type_name
from keras_cg.gradients import align
from keras_cg.pytree import Tree, compatible, describe


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex))


class Run:
    """One call of a function as a backend sees it, `run(*tensors) -> (outputs, aux)`.

    From the floating tensors among some of its arguments to those in its output; aux is the other tensors there.
    """

    # Whether every number and tensor among the arguments must have a gradient.
    is_strict = False

    def __init__(self, where: str, f: Callable[..., Any], args: Any, kwargs: Any, indices: Sequence[int]):
        self.backend = config.active
        keras_scope.stop_gradients(self.backend)
        self.where, self.f = where, f
        self.args, self.kwargs, self.indices = args, kwargs, indices
        self.tensors, self.arguments = self._differentiated(tuple(args[index] for index in indices))
        # The output without its differentiated tensors, and where its other tensors stand.
        self.output: Tree
        self.others: list[int]

    def __call__(self, *tensors: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The differentiated tensors of the output, and its others, for other differentiated arguments."""
        args = list(self.args)
        for index, value in zip(self.indices, self.arguments.combine(tensors), strict=True):
            args[index] = value
        try:
            value = self.f(*args, **self.kwargs)
        except (AttributeError, TypeError) as error:
            for index in self.indices:
                if isinstance(self.args[index], (list, tuple)) and all(map(_is_number, self.args[index])):
                    error.add_note(messages.nest_of_numbers(self.where, f"argument {index}", self.args[index]))
            raise
        return self.read(value)

    def read(self, value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The tensors that the function returned: those that are differentiated, and the others."""
        outputs, aux = self._flatten(value, "the output{}".format, is_all=True)
        if not outputs:
            raise messages.no_floating_output(self.where, self._describe(value))
        return outputs, aux

    def _flatten(
        self, value: Any, label: Callable[[str], str], is_all: bool
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Parts what was returned; of `(output, aux)`, where not all is differentiated, the first leaf alone is."""
        tree = pytree.flatten(value, self.backend.is_tensor, self.backend.children)
        tensors = pytree.partition(self.backend, self.where, tree, lambda tree, place: label(tree.paths()[place]))
        marked = [
            (place, tensor, is_differentiable(self.backend.dtype(tensor)) and (is_all or place == 0))
            for place, tensor in zip(tree.places, tensors, strict=True)
        ]
        tree.places = [place for place, _, is_wanted in marked if is_wanted]
        self.output = tree
        self.others = [place for place, _, is_wanted in marked if not is_wanted]
        return (
            tuple(tensor for _, tensor, is_wanted in marked if is_wanted),
            tuple(tensor for _, tensor, is_wanted in marked if not is_wanted),
        )

    def result(self, outputs: Sequence[Any], aux: Sequence[Any]) -> Any:
        """The output again, of what the backend made of its tensors."""
        values = dict(zip([*self.output.places, *self.others], [*outputs, *aux], strict=True))
        places = sorted(values)
        return self.output.fill(places, [values[place] for place in places])

    def like_arguments(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """A nest like each of the arguments, with one of `values` for each tensor, and None elsewhere."""
        return self.arguments.blank(values)  # type: ignore[no-any-return]

    def fit(self, name: str, value: Any, tree: Tree, tensors: Sequence[Any], model: str) -> list[Any]:
        """What `value`, a nest like `tree`, has where `tensors` stand: each a tensor like its own."""
        backend, places = self.backend, tree.places
        wrapped = pytree.wrap(value, backend.is_tensor, backend.children)
        aligned = align(tree.treespec, wrapped)
        if aligned is None:
            blank = pytree.wrap(tree.unflatten([None] * len(tree.leaves)), backend.is_tensor, backend.children)
            raise messages.not_the_nest(self.where, name, pytree.show(wrapped), pytree.show(blank), model)

        def label(_: Tree, index: int) -> str:
            return name + tree.paths()[places[index]]

        given = Tree([aligned[place] for place in places])
        came = pytree.partition(backend, self.where, given, label)
        parts = dict(zip(given.places, came, strict=True))
        return [
            self._fit_leaf(parts.get(index, given.leaves[index]), tensor, functools.partial(label, given, index), model)
            for index, tensor in enumerate(tensors)
        ]

    def _fit_leaf(self, leaf: Any, tensor: Any, label: Callable[[], str], model: str) -> Any:
        """An upstream or a tangent as a tensor like the one that it belongs to."""
        backend = self.backend
        kind, shape = backend.dtype(tensor), backend.shape(tensor)
        if leaf is None:
            return backend.namespace.zeros_like(tensor)
        came, size = "", None
        if backend.is_tensor(leaf):
            came, size = backend.dtype(leaf), backend.shape(leaf)
        elif isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool):
            came, size = "complex" if isinstance(leaf, complex) else "float", ()
        is_too_complex = came.startswith("complex") and not kind.startswith("complex")
        if not is_differentiable(came) or is_too_complex or not compatible(size, shape):
            raise messages.not_alike(self.where, label(), self._describe(leaf), describe(kind, shape), model)
        if not backend.is_tensor(leaf):
            return backend.namespace.ones_like(tensor) * (leaf if came == "complex" else float(leaf))
        leaf = backend.asarray(leaf)
        return leaf if came == kind else backend.cast(leaf, kind)

    def _describe(self, value: Any) -> str:
        """A value in a message."""
        if self.backend.is_tensor(value):
            return describe(self.backend.dtype(value), self.backend.shape(value))
        return article(type_name(value))

    def _differentiated(self, value: tuple[Any, ...]) -> tuple[list[Any], Tree]:
        """The differentiated tensors among the arguments, and the rest of these."""
        backend, tree = self.backend, pytree.flatten(value, self.backend.is_tensor, self.backend.children)
        for place, leaf in enumerate(tree.leaves):
            if isinstance(leaf, (int, float, complex)) and not backend.is_tensor(leaf):
                if not isinstance(leaf, int):
                    tree.leaves[place] = backend.asarray(leaf)
                elif self.is_strict:
                    raise messages.not_differentiable(self.where, self._label(tree, place), self._describe(leaf))
        tensors = pytree.partition(backend, self.where, tree, self._label)
        wanted, places = [], []
        for place, tensor in zip(tree.places, tensors, strict=True):
            if is_differentiable(backend.dtype(tensor)):
                places.append(place)
                wanted.append(tensor)
            elif self.is_strict:
                raise messages.not_differentiable(self.where, self._label(tree, place), self._describe(tensor))
            else:
                tree.leaves[place] = tensor
        if not wanted:
            raise messages.nothing_to_differentiate(self.where)
        tree.places = places
        return wanted, tree

    def _label(self, tree: Tree, place: int) -> str:
        number, _, inside = tree.paths()[place][1:].partition("]")
        return f"argument {self.indices[int(number)]}{inside}"


class LossRun(Run):
    """One call of a function of which `grad` is asked for: its result is the pair `(output, aux)`."""

    is_strict = True

    def __init__(
        self, where: str, f: Callable[..., Any], args: Any, kwargs: Any, indices: Sequence[int], has_aux: bool
    ):
        super().__init__(where, f, args, kwargs, indices)
        self.has_aux = has_aux

    def read(self, value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The loss, and the tensors of aux, of what the function returned."""
        output, aux = value, None
        if self.has_aux:
            if not isinstance(value, (tuple, list)) or len(value) != 2:
                raise messages.no_aux(self.where, value)
            output, aux = value
        kind = self.backend.dtype(output) if self.backend.is_tensor(output) else ""
        if not is_differentiable(kind) or kind.startswith("complex"):
            raise messages.not_a_scalar_output(self.where, self._describe(output))
        return self._flatten((output, aux), lambda path: f"aux{path.removeprefix('[1]')}", is_all=False)


class RealRun(Run):
    """One call of a function of which a Jacobian is asked for."""

    is_strict = True

    def __init__(self, where: str, f: Callable[..., Any], args: Any, kwargs: Any, indices: Sequence[int]):
        super().__init__(where, f, args, kwargs, indices)
        for place, tensor in zip(self.arguments.places, self.tensors, strict=True):
            self._refuse_complex(tensor, functools.partial(self._label, self.arguments, place))

    def read(self, value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The real tensors of the output, and its others, of what the function returned."""
        outputs, aux = super().read(value)
        for place, output in zip(self.output.places, outputs, strict=True):
            self._refuse_complex(output, functools.partial(self._output_label, place))
        return outputs, aux

    def _output_label(self, place: int) -> str:
        return f"the output{self.output.paths()[place]}"

    def _refuse_complex(self, tensor: Any, label: Callable[[], str]) -> None:
        if self.backend.dtype(tensor).startswith("complex"):
            raise messages.complex_jacobian(self.where, label(), self._describe(tensor))
