"""Ready-made custom gradients for common tasks.

Each recipe is an ordinary function. It runs on the active backend and returns the dtype of its argument. It can be
differentiated, compiled and batched with the framework's own functions. A parameter that may be a number or a tensor,
such as a schedule or a variable, gets no gradient unless its docstring describes one. NumPy's scalars are numbers.
"""

from keras_cg.recipes.annealed import gumbel_noise, gumbel_softmax, soft_round
from keras_cg.recipes.autograd_function import from_autograd_function
from keras_cg.recipes.callback import from_numpy
from keras_cg.recipes.checkpoint import recompute
from keras_cg.recipes.discrete import quantize, surrogate_spike
from keras_cg.recipes.forward import from_jvp
from keras_cg.recipes.implicit import custom_root
from keras_cg.recipes.passing import clip_gradient, reverse_gradient, scale_gradient, straight_through
from keras_cg.recipes.repeated import fixed_point
from keras_cg.recipes.reversible import invertible
from keras_cg.recipes.safe import log1pexp, log_sum_exp, safe_log, safe_norm, safe_sqrt

__all__ = [
    "clip_gradient",
    "custom_root",
    "fixed_point",
    "from_autograd_function",
    "from_jvp",
    "from_numpy",
    "gumbel_noise",
    "gumbel_softmax",
    "invertible",
    "log1pexp",
    "log_sum_exp",
    "quantize",
    "recompute",
    "reverse_gradient",
    "safe_log",
    "safe_norm",
    "safe_sqrt",
    "scale_gradient",
    "soft_round",
    "straight_through",
    "surrogate_spike",
]
