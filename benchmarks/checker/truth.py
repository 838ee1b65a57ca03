"""Whether a fault makes a difference to a rule: known by closed forms in NumPy, without the checker.

The wrong rule is called as it is, on NumPy and in double precision, at the point and away from it, again and again, for
ordinary upstreams and for huge and tiny ones; each time it is compared with the closed form of the right rule. What
shows in the second order alone is the framework's derivative of the wrong gradient, beside differences of the closed
form.
"""

import numpy as np

import keras_cg
from benchmarks.checker.rules import as_tuple

# The least that counts, relative to the largest number: what the rule's own precision leaves of it.
LEAST = {"float64": 5e-6, "float32": 1e-3, "float16": 5e-2}
# How large an upstream may be; the rest is ordinary.
SCALES = (1.0, -1.0, 2.0**-40, 2.0**40)


def wide(arrays):
    return [
        each.astype({"f": np.float64, "c": np.complex128}[each.dtype.kind]) if each.dtype.kind in "fc" else each
        for each in arrays
    ]


def upstreams(draw, outputs):
    """Numbers of either sign for each output, none near zero."""
    return [sized(draw, each) for each in outputs]


def sized(draw, like):
    found = draw.uniform(0.3, 1.7, np.shape(like)) * draw.choice([-1.0, 1.0], np.shape(like))
    return found + 1j * draw.uniform(0.3, 1.7, np.shape(like)) if np.iscomplexobj(like) else found


def right_gradient(rule, args, ups):
    """The closed form: a gradient for each argument, None for integers."""
    found = rule.gradient(*args, ups[0] if len(ups) == 1 else ups)
    found = found if isinstance(found, (list, tuple)) else [found]
    floats = [each.dtype.kind in "fc" for each in args]
    if len(found) < len(args):
        rest = iter(found)
        found = [next(rest) if is_float else None for is_float in floats]
    return [None if g is None else np.broadcast_to(np.asarray(g), a.shape) for g, a in zip(found, args, strict=True)]


def right_output(rule, args):
    return [np.asarray(each) for each in as_tuple(rule.output(*args))]


def difference(came, right):
    """How far some gradients are off, relative to the largest number of each; infinitely far in another shape."""
    worst = 0.0
    for one, other in zip(came, right, strict=True):
        if other is None:
            continue
        one = np.asarray(one)
        if one.shape != other.shape or not np.isfinite(one).all():
            return np.inf
        size = max(np.abs(one).max(initial=0), np.abs(other).max(initial=0))
        if size > 0:
            worst = max(worst, np.abs(one - other).max() / size)
    return worst


def displaced(draw, args):
    """A point near by."""
    return [each * (1 + draw.uniform(0.005, 0.02, each.shape)) if each.dtype.kind in "fc" else each for each in args]


def in_gradient(rule, flat, args):
    """The largest difference of first order, over what a user's program may do with the rule."""
    draw = np.random.default_rng(7)
    elsewhere = displaced(draw, args)
    worst = 0.0
    for point in (args, args, elsewhere, args):
        outputs, gradient = flat(*point)
        expected = right_output(rule, point)
        worst = max(worst, difference(as_tuple(outputs), expected))
        ups = upstreams(draw, expected)
        for scale in SCALES:
            scaled = [scale * each for each in ups]
            came = as_tuple(gradient(*scaled))
            if len(came) != len(point):
                return np.inf
            right = right_gradient(rule, point, scaled)
            pairs = zip(came, right, strict=True)
            worst = max(worst, difference([0 * r if c is None and r is not None else c for c, r in pairs], right))
    return worst


def directional(rule, args, ups, weights):
    """The gradient, with weights, as a number: what the second order differentiates."""
    found = right_gradient(rule, args, ups)
    return sum(np.sum(np.real(np.conj(w) * g)) for w, g in zip(weights, found, strict=True) if g is not None)


def in_second_order(rule, flat, args):
    """The derivative of the wrong gradient, by autograd, beside differences of the right one, both along directions."""
    draw = np.random.default_rng(8)
    ups = upstreams(draw, right_output(rule, args))
    weights = [sized(draw, each) if each.dtype.kind in "fc" else None for each in args]
    floats = [place for place, each in enumerate(args) if each.dtype.kind in "fc"]
    function = keras_cg.custom_gradient(flat_for_calls(flat))
    with keras_cg.use_backend("numpy"):

        def pulled(*floating):
            _, pullback = keras_cg.vjp(lambda *points: function(*put(args, floats, points)), *floating)
            return tuple(as_tuple(pullback(ups[0] if len(ups) == 1 else tuple(ups))))

        _, again = keras_cg.vjp(pulled, *[args[place] for place in floats])
        came = as_tuple(again(tuple(weights[place] for place in floats)))
    pairs = []
    for place, gradient in zip(floats, came, strict=True):
        # Each number moves by a share of itself.
        direction, step = sized(draw, args[place]) * np.abs(args[place]), 1e-5
        ends = []
        for sign in (1, -1):
            moved = put(args, [place], [args[place] + sign * step * direction])
            ends.append(directional(rule, moved, ups, weights))
        pairs.append((float(np.sum(np.real(np.conj(direction) * gradient))), (ends[0] - ends[1]) / (2 * step)))
    largest = max((abs(number) for pair in pairs for number in pair), default=0.0)
    scale = max(abs(directional(rule, args, ups, weights)), largest)
    return max((abs(a - b) / largest for a, b in pairs if abs(a - b) > 1e-4 * scale), default=0.0)


def put(values, places, others):
    found = [*values]
    for place, each in zip(places, others, strict=True):
        found[place] = each
    return found


def flat_for_calls(flat):
    """A flat rule, under the convention that takes any number of upstreams."""

    def function(*args):
        outputs, gradient = flat(*args)
        return outputs, lambda *ups: as_tuple(gradient(*ups))

    return function


def in_dtype(rule, flat, arrays):
    """The difference in the dtypes that the arguments have."""
    outputs, gradient = flat(*arrays)
    pairs = zip(upstreams(np.random.default_rng(9), as_tuple(outputs)), as_tuple(outputs), strict=True)
    ups = [each.astype(np.asarray(like).dtype) for each, like in pairs]
    came = as_tuple(gradient(*ups))
    return difference(came, right_gradient(rule, wide(arrays), ups))


def counts(rule, kind, arrays):
    """Whether a kind of fault makes a difference to a rule at a point; None if it does not fit the rule."""
    if not kind.fits(rule, arrays):
        return None
    args = wide(arrays)
    with keras_cg.use_backend("numpy"), np.errstate(all="ignore"):
        flat = kind.plant(rule.flat)
        if kind.shows == "second order":
            return rule.inner == "float64" and bool(in_second_order(rule, flat, args) > 1e-3)
        if kind.shows == "dtype":
            return bool(in_dtype(rule, flat, arrays) > 0.1)
        if kind.shows in ("forward mode", "compiled"):
            # Zero for another gradient than zero; a tenth more than a gradient that is not zero.
            ups = upstreams(np.random.default_rng(7), right_output(rule, args))
            return any(np.any(each) for each in right_gradient(rule, args, ups) if each is not None)
        return bool(in_gradient(rule, flat, args) > LEAST[rule.inner])
