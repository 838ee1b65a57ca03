"""Rematerialisation: a function that saves only its arguments, and runs again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_cg.bridge import keras_interop
from keras_cg.engine.world import World
from keras_cg.frontend import arguments, config, pytree
from keras_cg.frontend.call import function_name
from keras_cg.frontend.function import FlatFunction
from keras_cg.frontend.pickling import picklable
from keras_cg.frontend.tree import Tree
from keras_cg.recipes import frameworks, messages, tensors


@picklable
def recompute(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that saves only its arguments, and runs again in the backward pass: rematerialisation.

    It trades time for memory. The output, the gradients and all higher derivatives are those of `f`. Weights that `f`
    closes over are trained, but not on NumPy, and a `custom_gradient` inside has its own rule. JAX and torch have it
    built in (`jax.checkpoint`, `torch.utils.checkpoint`). Under a transform of torch.func no memory is saved, and under
    `torch.compile` its own partitioner decides.

    - `f` must not change the state of Keras: use `keras.remat` or `keras.RematScope` for Dropout and other layers that
      do. In the second run layers see the same training flag and the same dtype policy.
    - Random numbers must be the same in both runs: torch repeats its own, and a seed repeats those of `keras.random`.
    - Tensors that `f` reads must not be assigned, nor changed in place, before the backward pass. A second run with
      another output raises. A variable of Python, such as that of a loop, may be bound again.

    Source: Griewank & Walther 2000, Algorithm 799: revolve, https://doi.org/10.1145/347837.347846; Chen et al. 2016,
    Training deep nets with sublinear memory cost, https://arxiv.org/abs/1604.06174

    Args:
        f: A function of any arguments, by position or keyword, and any output: pytrees of `any[...]` and of other
            objects.

    Returns:
        A function with the arguments and the output of `f`.

    Raises:
        TypeError: `f` cannot be called. When the result is called: an argument belongs to another framework, or is a
            KerasTensor.
        CapturedVariableError: When the result is called, on NumPy: `f` reads a value that is being differentiated and
            that is no argument; and on TensorFlow, where nothing finds such a value, as in an attribute of a module.
        RuntimeError: When the result is called: `f` changes the state of Keras, adds a loss to a layer or builds one.
            In the backward pass: `f` returned another output (in a graph of TensorFlow the gradient is NaN; JAX uses
            the old values).

    See Also:
        `keras_cg.recipes.invertible`, which saves only the last output.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> runs = []
        >>> def cube(x):
        ...     runs.append("forward")
        ...     return x**3
        >>> keras_cg.grad(recipes.recompute(cube))(np.array(2.0)).item(), len(runs)
        (12.0, 2)
    """
    if not callable(f):
        raise messages.not_a_function("recompute", f)
    name = f"recompute({function_name(f)})"

    @tensors.named_like(f)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        backend, keywords = config.active, tuple(kwargs)
        tree = pytree.flatten((*args, *kwargs.values()), backend)

        def label(tree: Tree, place: int) -> str:
            return f"the argument {arguments.labels(f, len(args), keywords, tree)[place]}"

        for place, leaf in enumerate(tree.leaves):
            if keras_interop.is_symbolic([leaf]):
                raise messages.symbolic(name, label(tree, place).removeprefix("the argument "))
        values = pytree.partition(backend, name, tree, label)
        function = OutputFunction(backend, name, f, len(args)).of(keywords, tree)
        function.refuse_changes()
        if not backend.is_recording():
            return function.finish(function(*values))
        return function.finish(frameworks.this.checkpoint.recompute(function, values))

    return recomputed


class OutputFunction(FlatFunction):
    """A function that runs again for its gradient, from tensors to tensors: it has no rule.

    Attributes:
        world: That of the first run, in which every other one starts; None if there is nothing to put back.
    """

    world: World | None = None

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        """Runs the function: returns the tensors of the output, then the variables of Keras that it changed."""
        if self.world is not None:
            return self.world.again(self._run, *tensors)  # type: ignore[no-any-return]
        # None where a compiler traces: it decides itself what runs again.
        opened = None if self.output or self.backend.is_compiling() else World(self.user, self.static.leaves)
        results = self._run(*tensors)
        self.world = None if opened is None else opened.close({}, {})
        return results

    def _run(self, *tensors: Any) -> tuple[Any, ...]:
        output, changed, _ = self.run(*self.bind(tensors))
        tree, results = self.flatten(output)
        self.output = self.output or tree
        return (*results, *changed)
