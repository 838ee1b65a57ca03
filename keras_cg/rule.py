"""The user's rule: called under any convention, and checked for what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from keras_cg import closure, errors, nest, signature
from keras_cg.backends import Backend
from keras_cg.nest import Nest
from keras_cg.signature import Parameters


class Call(NamedTuple):
    """One call of a decorated function: its arguments, bound and laid flat."""

    backend: Backend
    name: str
    fun: Callable[..., Any]
    # The values given, in the order of the signature, and the names of those given by keyword.
    positionals: int
    keywords: tuple[str, ...]
    nest: Nest

    def labels(self) -> list[str]:
        """Every leaf as the user would name it: `x`, `params["w"][0]`."""
        found = signature.parameters(self.fun)
        labels = []
        for path in self.nest.paths():
            index, _, rest = path[1:].partition("]")
            position = int(index)
            if position >= self.positionals:
                label = self.keywords[position - self.positionals]
            else:
                label = found.label(position) if found else f"argument {position}"
            labels.append(label + rest)
        return labels


def describe(dtype: str, shape: tuple[int | None, ...] | None) -> str:
    """A tensor in a message: `float32[3, ?]`."""
    if shape is None:
        return f"{dtype}[...]"
    return f"{dtype}[{', '.join('?' if size is None else str(size) for size in shape)}]"


def is_differentiable(dtype: str) -> bool:
    """Whether tensors of this dtype have a gradient: floats of any width, and complex numbers."""
    return dtype.startswith(("float", "bfloat", "complex"))


Like = tuple[str, tuple[int | None, ...] | None]


class Pullback:
    """The rule of one run of the function, as a backend sees it: flat and checked."""

    def __init__(
        self,
        call: Call,
        rule: Callable[..., Any],
        arguments: tuple[Any, ...],
        count: int,
        places: Sequence[int],
        likes: Sequence[Like],
        outputs: Nest,
        found: Sequence[int],
    ):
        self.call = call
        self.rule = rule
        self.takes_one = signature.takes_one(rule)
        # The positional arguments of this run, so many, or () once it is known that the rule is not called with them.
        self.arguments = () if self.takes_one else arguments
        self.count = count
        # Which leaves of all arguments are tensors, and what their gradients must look like.
        self.places = places
        self.likes = likes
        # The output's structure, without its leaves, and which of them are tensors.
        self.outputs = outputs
        self.found = found

    def takes_variables(self) -> bool:
        """Whether the rule asks for what the function captured."""
        found = signature.parameters(self.rule)
        return found is not None and ("variables" in found.names() or found.varkw is not None)

    def capture(self, names: Sequence[str]) -> None:
        """Told what trainable values the function read besides its arguments.

        Raises:
            CapturedVariableError: There are some, and the rule takes no `variables`.
        """
        if names and not self.takes_variables():
            raise errors.captured_variable(self.call.name, names)

    def take_apart(self) -> tuple[list[Any], Callable[[Sequence[Any]], Pullback]]:
        """The tensors that this pullback holds, and `rebuild(tensors)`, the same pullback around others."""
        backend = self.call.backend
        found = None if self.takes_one else signature.parameters(self.rule)
        arguments = self.arguments if found is not None and _gets_arguments(found) else ()
        tensors, rebuild = closure.take_apart(
            self.rule, arguments, backend.is_tensor, backend.children, made_by=self.call.fun
        )
        # Not `self`, which holds the tensors.
        call, count, places, likes, outputs, results = (
            self.call,
            self.count,
            self.places,
            self.likes,
            self.outputs,
            self.found,
        )
        return tensors, lambda tensors: Pullback(call, *rebuild(tensors), count, places, likes, outputs, results)

    def __call__(
        self, cotangents: Sequence[Any], variables: Sequence[Any] = ()
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The gradients of the tensor arguments and of `variables`, None where there is none."""
        backend = self.call.backend
        leaves = [None] * len(self.outputs.leaves)
        # After those of the outputs come those of what the function changed in Keras's variables: see `State`.
        for place, cotangent in zip(self.found, cotangents, strict=False):
            if cotangent is not None and is_differentiable(backend.dtype(cotangent)):
                leaves[place] = cotangent
        args, kwargs = self._arrange(leaves)
        if variables:
            kwargs = {**kwargs, "variables": list(variables)}
        try:
            result = self.rule(*args, **kwargs)
        except TypeError:
            found = signature.parameters(self.rule)
            if found is not None and not _binds(found, args, kwargs):
                raise self._misfit_signature(leaves) from None
            raise
        if not variables:
            return self._collect(result), ()
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise errors.wrong_variable_count(self.call.name, errors.article(errors.type_name(result)), len(variables))
        gradients, others = result
        if not isinstance(others, (tuple, list)) or len(others) != len(variables):
            came = f"{len(others)} of them" if isinstance(others, (tuple, list)) else errors.type_name(others)
            raise errors.wrong_variable_count(self.call.name, came, len(variables))
        return self._collect(gradients), tuple(
            self._check(other, (backend.dtype(variable), backend.shape(variable)), "variables[{}]".format, index)
            for index, (other, variable) in enumerate(zip(others, variables, strict=True))
        )

    # --- on the way in: one of the conventions -------------------------------------------------

    def _arrange(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for the rule, by the first convention that its signature fits."""
        upstream = self.outputs.pack(leaves)
        if self.takes_one:
            return (upstream,), {}
        found = signature.parameters(self.rule)
        if found is None:
            return (upstream,), {}
        positional = _without_variables(found)
        if found.varargs is None and len(positional) == 1 and "upstream" not in found.keyword_only:
            return (upstream,), {}
        if _gets_arguments(found):
            if _takes_arguments(found, positional, self.count):
                return self.arguments, {"upstream": upstream}
            complete = self._with_defaults()
            if _takes_arguments(found, positional, len(complete)):
                return complete, {"upstream": upstream}
        elif found.varargs is not None:
            if len(positional) <= len(leaves) or found.required() <= len(leaves):
                return tuple(leaves), {}
        elif len(positional) > 1 and len(leaves) == 1:
            # All but the first have defaults, or the call will tell: see __call__.
            return (upstream,), {}
        elif positional:
            required = found.required()
            if required <= 1:
                return (upstream,), {}
            if required == len(self.found):
                return tuple(leaves[place] for place in self.found), {}
            if required == len(leaves):
                return tuple(leaves), {}
        raise self._misfit_signature(leaves)

    def _misfit_signature(self, leaves: list[Any]) -> TypeError:
        name = getattr(self.rule, "__name__", type(self.rule).__name__)
        found = signature.parameters(self.rule)
        shown = found.show(name) if found else f"{name}(...)"
        return errors.no_convention(self.call.name, shown, self.count, len(leaves))

    def _with_defaults(self) -> tuple[Any, ...]:
        """The function's positional arguments, with those left at their defaults."""
        found = signature.parameters(self.call.fun)
        missing = 0 if found is None else len(found.positional) - self.count
        if found is None or missing <= 0:
            return self.arguments
        defaults = found.defaults()
        return (*self.arguments, *defaults[len(defaults) - missing :]) if len(defaults) >= missing else self.arguments

    # --- on the way out: one gradient per tensor argument --------------------------------------

    def _collect(self, result: Any) -> tuple[Any, ...]:
        """One checked gradient per tensor argument, from whatever structure the rule chose."""
        return tuple(
            [
                self._check(gradient, like, self._label, place)
                for gradient, like, place in zip(self._pick(result), self.likes, self.places, strict=True)
            ]
        )

    def _label(self, place: int) -> str:
        return self.call.labels()[place]

    def _pick(self, result: Any) -> Sequence[Any]:
        """What the rule returned for each tensor argument, in order."""
        places, count = self.places, len(self.call.nest.leaves)
        backend = self.call.backend
        if len(places) == 1 and backend.is_tensor(result):
            return [result]
        if type(result) in (tuple, list) and len(result) == len(places) and all(map(backend.is_tensor, result)):
            return result  # type: ignore[no-any-return]
        # With something at every leaf, a nest like the arguments is nothing else.
        whole = tuple(result) if type(result) in (tuple, list) else (result,)
        laid = nest.flatten(whole, backend.is_tensor, backend.children)
        if laid.spec == self.call.nest.spec and not any(map(_is_nothing, laid.leaves)):
            return [laid.leaves[place] for place in places]
        value = nest.wrap(result, backend.is_tensor, backend.children)
        fits = self._fits(value, count)
        picked = next(fits, None)
        if picked is None:
            raise self._misfit(value)
        has_containers = self.call.nest.spec.num_nodes > count + 1
        # None may stand for a whole nest as for a leaf, so that one result can mean two things.
        blank = has_containers and any(map(_is_nothing, nest.leaves(value)))
        if blank and not all(self._is_same(picked, other) for other in fits):
            raise errors.ambiguous(self.call.name, nest.show(value), f"({', '.join(self.call.labels())})")
        return picked

    def _is_same(self, one: Sequence[Any], other: Sequence[Any]) -> bool:
        """Whether two readings of a result give every argument the same gradient."""
        return all(
            a is b or (_is_nothing(a) and _is_nothing(b)) or not is_differentiable(dtype)
            for a, b, (dtype, _) in zip(one, other, self.likes, strict=True)
        )

    def _fits(self, value: Any, count: int) -> Iterator[Sequence[Any]]:
        """For every structure that `value` may be, what it has for each tensor argument."""
        places = self.places
        if _is_flat(value):
            if len(value) == len(places):
                yield value
            if len(value) == count:
                yield [value[place] for place in places]
        elif nest.is_leaf(value) and len(places) == 1:
            yield [value]
        for specs, kept in self._forms():
            aligned = _align_all(specs, value)
            if aligned is not None:
                yield [aligned[place] for place in kept]

    def _forms(self) -> Iterator[tuple[list[Any], list[int]]]:
        """The structures a rule may return, each with the positions of the tensors in it."""
        places = set(self.places)
        specs = self.call.nest.spec.children()
        tensors = []
        start = 0
        for spec in specs:
            leaves = range(start, start + spec.num_leaves)
            tensors.append([leaf in places for leaf in leaves])
            start = leaves.stop
        explicit = list(zip(specs, tensors, strict=True))
        yield _form(explicit)
        yield _form([(spec, marks) for spec, marks in explicit if any(marks)])
        complete = self._with_every_default(explicit)
        yield _form(complete)
        yield _form([(None, [mark]) for _, marks in complete for mark in marks])

    def _with_every_default(self, explicit: list[tuple[Any, list[bool]]]) -> list[tuple[Any, list[bool]]]:
        """The arguments as `_forms` has them, those left at their defaults put in where they belong."""
        call = self.call
        found = signature.parameters(call.fun)
        if found is None:
            return explicit
        named = dict(zip(call.keywords, explicit[call.positionals :], strict=True))
        missing = found.positional[call.positionals :]
        defaults: dict[str, Any] = {}
        if any(name not in named for name in missing):
            defaults.update(found.positional_defaults())
        if any(name not in named for name in found.keyword_only):
            defaults.update(found.keyword_defaults())

        def take(name: str) -> tuple[Any, list[bool]]:
            if name in named:
                return named.pop(name)
            spec = nest.flatten(defaults[name], call.backend.is_tensor, call.backend.children).spec
            return spec, [False] * spec.num_leaves

        complete = explicit[: min(call.positionals, len(found.positional))]
        complete += [take(name) for name in missing]
        complete += explicit[len(found.positional) : call.positionals]
        complete += [take(name) for name in found.keyword_only]
        return [*complete, *named.values()]

    def _misfit(self, value: Any) -> errors.GradientError:
        """The error for a result that fits no structure: its count is wrong, or else its nest."""
        call = self.call
        labels = call.labels()
        if nest.is_leaf(value) and not (value is None or call.backend.is_tensor(value)):
            return errors.not_a_gradient(call.name, ", ".join(labels), value, f"({', '.join(labels)})")
        if nest.is_leaf(value):
            came = 1
        elif _is_flat(value):
            came = len(value)
        else:
            return errors.wrong_structure(call.name, nest.show(value), f"({', '.join(labels)})")
        return errors.wrong_count(call.name, came, [labels[place] for place in self.places], len(labels))

    def _check(self, gradient: Any, like: Like, label: Callable[[int], str], place: int) -> Any:
        """`gradient` as a tensor like the one it belongs to, or None."""
        backend, name = self.call.backend, self.call.name
        dtype, shape = like
        if gradient is None or not is_differentiable(dtype):
            return None
        number = None
        if not backend.is_tensor(gradient):
            if not isinstance(gradient, (int, float, complex)):
                raise errors.not_a_gradient(name, label(place), gradient, describe(dtype, shape))
            if gradient == 0 and not isinstance(gradient, bool):
                return None
            # Which dtype a number gets differs from framework to framework.
            number = type(gradient).__name__
        gradient = backend.asarray(gradient)
        came, size = backend.dtype(gradient), backend.shape(gradient)
        if came == dtype and size == shape:
            return gradient
        if came.startswith("complex") and not dtype.startswith("complex"):
            raise errors.wrong_kind(name, label(place), describe(number or came, size), describe(dtype, shape))
        if not compatible(size, shape):
            found, axes = describe(number or came, size), _broadcast_axes(size, shape)
            raise errors.wrong_shape(name, label(place), found, describe(dtype, shape), axes)
        return gradient if came == dtype else backend.cast(gradient, dtype)


def _binds(found: Parameters, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call gives every parameter that has no default."""
    needed = found.positional[: len(found.positional) - len(found.defaults())][len(args) :]
    needed += tuple(name for name in found.keyword_only if name not in found.keyword_defaults())
    return all(name in kwargs for name in needed)


def _without_variables(found: Parameters) -> tuple[str, ...]:
    return tuple(name for name in found.positional if name != "variables")


def _gets_arguments(found: Parameters) -> bool:
    """Whether a rule is called with the function's arguments, and `upstream` by name."""
    return "upstream" in found.keyword_only or "upstream" in _without_variables(found)[1:]


def _takes_arguments(found: Parameters, positional: tuple[str, ...], count: int) -> bool:
    """Whether a rule with an `upstream` that it gets by name can be called with `count` arguments before it."""
    if "upstream" in positional:
        return positional.index("upstream") == count
    if found.varargs is not None:
        return len(positional) <= count
    return len(positional) == count or (len(positional) > count >= found.required())


def compatible(came: tuple[int | None, ...] | None, expected: tuple[int | None, ...] | None) -> bool:
    """Whether two shapes are equal, as far as they are known."""
    if came is None or expected is None:
        return True
    if len(came) != len(expected):
        return False
    return all(a is None or b is None or a == b for a, b in zip(came, expected, strict=True))


def _broadcast_axes(came: tuple[int | None, ...] | None, expected: tuple[int | None, ...] | None) -> list[int]:
    """The axes of the shape `came` along which a tensor of the other shape may have been broadcast to it."""
    if came is None or expected is None or len(came) < len(expected):
        return []
    added = len(came) - len(expected)
    aligned = (*[1] * added, *expected)
    if any(small not in (1, size) for size, small in zip(came, aligned, strict=True)):
        return []
    return [axis for axis, size in enumerate(came) if axis < added or (aligned[axis] == 1 and size != 1)]


def _form(arguments: list[tuple[Any, list[bool]]]) -> tuple[list[Any], list[int]]:
    marks = [mark for _, marks in arguments for mark in marks]
    return [spec for spec, _ in arguments], [place for place, mark in enumerate(marks) if mark]


def _is_nothing(value: Any) -> bool:
    """Whether a rule says by `value` that there is no gradient."""
    # The exact types: a number of NumPy is a float, too, and a gradient.
    return value is None or (type(value) in (int, float) and value == 0)


def _is_flat(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether something that `nest.wrap` gave is a sequence of leaves."""
    return isinstance(value, (tuple, list)) and all(nest.is_leaf(each) for each in value)


def _align_all(specs: list[Any], value: Any) -> list[Any] | None:
    """The leaves of `value`, a sequence with one part for each of `specs`; a single part may stand bare."""
    if isinstance(value, (tuple, list)) and len(value) == len(specs):
        aligned = _align_each(specs, value)
        if aligned is not None:
            return aligned
    return align(specs[0], value) if len(specs) == 1 else None


def align(spec: Any, value: Any) -> list[Any] | None:
    """The leaves of `value` in the order of `spec`, or None if it is another structure.

    A `spec` of None is a leaf. None or the number 0 may stand for a whole part; a list may stand for a tuple.
    """
    if spec is None or spec.is_leaf():
        return [value] if nest.is_leaf(value) else None
    if _is_nothing(value):
        return [None] * spec.num_leaves
    if nest.is_leaf(value):
        return None
    entries, children = nest.open(value)
    if issubclass(spec.type, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(children) != spec.num_children:
            return None
    elif issubclass(spec.type, Mapping):
        if not isinstance(value, Mapping) or set(entries) != set(spec.entries()):
            return None
        by_key = dict(zip(entries, children, strict=True))
        children = [by_key[key] for key in spec.entries()]
    elif type(value) is not spec.type or list(entries) != list(spec.entries()):
        return None
    return _align_each(spec.children(), children)


def _align_each(specs: Sequence[Any], values: Sequence[Any]) -> list[Any] | None:
    """The leaves of all `values`, each in the order of its spec, or None if one is another structure."""
    leaves: list[Any] = []
    for spec, value in zip(specs, values, strict=True):
        part = align(spec, value)
        if part is None:
            return None
        leaves += part
    return leaves
