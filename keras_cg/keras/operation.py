"""Decorated functions as Keras operations: for a call on a `KerasTensor`, and to be saved."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import keras
import numpy

from keras_cg import errors
from keras_cg.bridge import keras_interop
from keras_cg.bridge import messages as keras_messages
from keras_cg.frontend import config
from keras_cg.frontend.call import function_name
from keras_cg.frontend.decorator import CustomGradient
from keras_cg.keras import messages

__all__ = ["CustomGradientOperation"]

keras.saving.register_keras_serializable(package="keras_cg")(CustomGradient)


@keras.saving.register_keras_serializable(package="keras_cg")
class CustomGradientOperation(keras.Operation):  # type: ignore[misc]  # Keras has no types
    """A decorated function as a node of a functional model.

    A call of a decorated function on a `keras.KerasTensor` creates a node and calls it, like `keras.ops`. The model
    uses the rule, and can be saved, loaded and cloned. It is saved with the name under which
    `keras.saving.register_keras_serializable` registered the function. Without a registration it is saved with the
    function's own name, which must be among the `custom_objects` when the model is loaded.

    Args:
        function: A function decorated with `keras_cg.custom_gradient`.
        name: The operation's name; None for the function's name and a number.

    Raises:
        TypeError: When it is saved: the function has no name to find it by. When it is loaded: nothing of that name is
            registered.

    See Also:
        `keras_cg.custom_gradient`

    Example:
        >>> import keras, keras_cg
        >>> @keras_cg.custom_gradient
        ... def double(x):
        ...     return 2 * x, lambda upstream: 2 * upstream
        >>> inputs = keras.Input([3])
        >>> double(inputs).shape
        (None, 3)
    """

    def __init__(self, function: CustomGradient[..., Any], name: str | None = None):
        super().__init__(name=name or _new_name(function))
        self.function = function
        # The variables that the function read when it ran on placeholders.
        self._read: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the function's output, symbolic or not.

        Raises:
            TypeError: The function reads a trainable variable by itself, which no model owns.
        """
        try:
            output = super().__call__(*args, **kwargs)
        except errors.CapturedVariableError:
            # First, because Keras would wrap TensorFlow's error about the same variable, which has another remedy.
            self._refuse_trainable()
            raise
        self._refuse_trainable()
        return output

    def _refuse_trainable(self) -> None:
        for variable in self._read:
            if variable.trainable:
                raise messages.symbolic_variable(function_name(self.function), "what it reads", variable.path)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the function's output, with the gradient of its rule."""
        return self.function(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the output's shapes and dtypes, by a run of the function on placeholders."""
        leaves = keras.tree.flatten((args, kwargs))
        inference = _Inference(self.function, args, kwargs, self.name)
        self._read = inference.read
        # Without warnings, because Keras (3.15) on NumPy runs it on uninitialised memory.
        with numpy.errstate(all="ignore"):
            return inference.compute_output_spec(*(each for each in leaves if isinstance(each, keras.KerasTensor)))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "function": self.function}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CustomGradientOperation:
        """Returns the operation of a config by `get_config`, or by Keras's serialisation of that."""
        function = config["function"]
        if isinstance(function, dict):
            function = keras.saving.deserialize_keras_object(function)
        return cls(function, config["name"])


class _Inference(keras.Operation):  # type: ignore[misc]  # Keras has no types
    """A function of the placeholders among its arguments, because Keras (3.15) on JAX would trace all arguments."""

    def __init__(self, function: CustomGradient[..., Any], args: Any, kwargs: Any, name: str):
        super().__init__(name=name)
        self.run = function, args, kwargs
        self.read: list[Any] = []

    def call(self, *tensors: Any) -> Any:
        function, args, kwargs = self.run
        values = iter(tensors)
        args, kwargs = keras.tree.map_structure(
            lambda leaf: next(values) if isinstance(leaf, keras.KerasTensor) else leaf, (args, kwargs)
        )
        with _Reading(self.read):
            return function(*args, **kwargs)


class _Reading(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
    """A scope that records the variables that are read in it, and discards assignments."""

    def __init__(self, read: list[Any]):
        super().__init__(initialize_variables=False)
        self.read = read

    def get_current_value(self, variable: Any) -> Any:
        """Records a variable; Keras calls this for every variable that is read."""
        self.read.append(variable)
        return super().get_current_value(variable)


def apply(
    function: CustomGradient[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], leaves: dict[str, Any]
) -> Any:
    """Returns the symbolic output of a call with a `KerasTensor` among the `leaves` of its arguments.

    Raises:
        TypeError: Keras runs on another backend, would not find a `KerasTensor`, or not own a variable.
    """
    name, visible = function_name(function), {id(each) for each in keras.tree.flatten((args, kwargs))}
    for variable in _captured(function):
        raise messages.symbolic_variable(name, f"what it reads as {variable[0]}", variable[1].path)
    for label, leaf in leaves.items():
        role = f"the argument {label}"
        if isinstance(leaf, keras.Variable):
            raise messages.symbolic_variable(name, role, leaf.path)
        if isinstance(leaf, keras.KerasTensor):
            chosen, running = config.resolve(), keras_interop.choice()
            if running and running[0] != chosen[0]:
                raise keras_messages.keras_elsewhere(name, role, leaf, *chosen, *running)
            if id(leaf) not in visible:
                raise keras_messages.symbolic_tensor(name, role)
    return CustomGradientOperation(function)(*args, **kwargs)


def _captured(function: CustomGradient[..., Any]) -> list[tuple[str, Any]]:
    """Returns the names and values of the trainable variables in closures and globals that a function reads."""
    if not inspect.isfunction(function.__wrapped__):
        return []
    names = inspect.getclosurevars(function.__wrapped__)
    values = {**names.globals, **names.nonlocals}
    return [(name, each) for name, each in values.items() if isinstance(each, keras.Variable) and each.trainable]


def _new_name(function: CustomGradient[..., Any]) -> str:
    # Like the names of layers: `dense`, `dense_1`.
    name = re.sub(r"\W+", "_", getattr(function, "__name__", "")).strip("_") or "custom_gradient"
    number: int = keras.backend.get_uid(name)
    return name if number == 1 else f"{name}_{number - 1}"


def to_config(function: CustomGradient[..., Any]) -> dict[str, Any]:
    """Returns the config by which Keras saves a decorated function.

    Raises:
        TypeError: It has no name, or Keras knows another object by that name.
    """
    is_bound = hasattr(function.__wrapped__, "__self__")
    if is_bound or getattr(function, "__name__", "<lambda>") == "<lambda>":
        raise messages.not_saveable(repr(function))
    name = keras.saving.get_registered_name(function)
    registered = keras.saving.get_registered_object(name)
    if registered is not None and registered is not function:
        raise messages.name_is_in_use(repr(function), name)
    return {"function": name, "module": function.__module__}


def of_config(config: dict[str, Any]) -> CustomGradient[..., Any]:
    """Returns the decorated function that `config` names.

    Raises:
        TypeError: No function of that name is registered, or among the `custom_objects`.
    """
    name, module = config["function"], config["module"]
    function = keras.saving.get_registered_object(name)
    if function is None and module.partition(".")[0] == "keras_cg":
        # Only from modules of keras_cg, because a file must not choose which module is imported.
        function = getattr(importlib.import_module(module), name, None)
    if not isinstance(function, CustomGradient):
        raise messages.not_registered(name)
    return function
