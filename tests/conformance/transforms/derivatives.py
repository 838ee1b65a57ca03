"""What every framework has alike: the loss of a problem, and the functions that give its derivatives."""


class Derivatives:
    """Of a framework that has `sum`, `real` and `conj`, by its `gradient(loss)`, a function of the arguments."""

    def __init__(self, xp, gradient):
        self.xp, self.gradient = xp, gradient

    def inner(self, a, b):
        """The real inner product."""
        xp = self.xp
        return sum(xp.sum(xp.real(xp.conj(left) * right)) for left, right in zip(a, b, strict=True))

    def loss(self, p, f=None):
        return lambda *tensors: self.inner(p.weights, (f or p.f)(*tensors))

    def second(self, p, f=None):
        first = self.gradient(self.loss(p, f))
        return self.gradient(lambda *tensors: self.inner(p.c, first(*tensors)))

    def third(self, p):
        second = self.second(p)
        return self.gradient(lambda *tensors: self.inner(p.d, second(*tensors)))

    def squared(self, p, f=None):
        """A loss whose upstream depends on the arguments, too."""
        return lambda *tensors: self.inner(p.weights, [out * self.xp.conj(out) for out in (f or p.f)(*tensors)])

    def composite(self, p, f=None):
        first = self.gradient(self.squared(p, f))
        return self.gradient(lambda *tensors: self.inner(p.c, first(*tensors)))

    def of_batch(self, p, f):
        """The sum of what a mapped function gives for the two points, weighted."""
        return lambda *batch: sum(self.inner(p.weights, [each[index] for each in f(*batch)]) for index in range(2))
