"""TensorFlow beyond this process: SavedModel, with the rules or without, and MirroredStrategy."""

import functools

import numpy as np
import programs
import pytest
from seven_exp import E as EXP
from seven_exp import X, f
from seven_exp import check as close
from tapes import gradients

from keras_cg import custom_gradient

pytestmark = pytest.mark.only("tensorflow")


run = functools.partial(programs.run, TF_CPP_MIN_LOG_LEVEL="3", KERAS_CG_BACKEND="tensorflow")


def test_mirrored_strategy(backend):
    run("""
        import numpy as np, tensorflow as tf
        from keras_cg import CapturedVariableError, custom_gradient

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            v = tf.Variable([2.0, 3.0, 4.0])
            frozen = tf.Variable([2.0, 3.0, 4.0], trainable=False)
        X = np.array([-1.0, 0.5, 1.0], np.float32)

        @custom_gradient
        def plain(x):
            e = tf.exp(x)
            return x * 2, lambda upstream: 7 * upstream * e

        def closing(v):
            return custom_gradient(lambda x: (x * v, lambda upstream: 7 * upstream))

        served = custom_gradient(lambda x: (x * v, lambda upstream, variables: (7 * upstream, [11 * upstream * x])))
        argument = custom_gradient(lambda x, w: (x * w, lambda upstream: (7 * upstream, 11 * upstream)))

        def step(g):
            def on_a_replica():
                replica = tf.distribute.get_replica_context().replica_id_in_sync_group
                x = X * tf.cast(replica + 1, tf.float32)
                with tf.GradientTape() as outer:
                    outer.watch(x)
                    with tf.GradientTape() as tape:
                        tape.watch(x)
                        y = g(x)
                    gx, gv = tape.gradient(y, [x, v])
                return gx, outer.gradient(gx, x), gv
            return on_a_replica

        def check(found, expected):
            for replica, came in enumerate(strategy.experimental_local_results(found)):
                due = expected((replica + 1) * X.astype(float))
                if due is None:
                    assert came is None
                else:
                    np.testing.assert_allclose(came, due, rtol=1e-5)

        for wrap in (lambda g: g, tf.function, lambda g: tf.function(lambda: g())):
            for g, expected in [
                (plain, [lambda x: 7 * np.exp(x), lambda x: 7 * np.exp(x), lambda x: None]),
                (served, [lambda x: np.full(3, 7.0), lambda x: None, lambda x: 11 * x]),
                (lambda x: argument(x, v), [lambda x: np.full(3, 7.0), lambda x: None, lambda x: np.full(3, 11.0)]),
                (closing(frozen), [lambda x: np.full(3, 7.0), lambda x: None, lambda x: None]),
            ]:
                for found, due in zip(wrap(lambda: strategy.run(step(g)))(), expected):
                    check(found, due)
            try:
                wrap(lambda: strategy.run(step(closing(v))))()
            except CapturedVariableError as error:
                assert "reads 1 trainable value" in str(error)
            else:
                raise AssertionError("a captured variable went unseen")
    """)


@pytest.mark.limit
def test_saved_models_obey_the_rule_where_keras_cg_is_not(eager, tf, tmp_path):
    """What was saved without the rules raises where it is differentiated, and finds no rule of another program."""
    constant, vector = tf.linspace(1.0, 2.0, 300), tf.TensorSpec([None])

    @custom_gradient
    def nested(p, *, n):
        e = tf.exp(p["a"])
        return (p["a"] * n, p["b"] * 3), lambda one, two: {"a": 7 * one * e, "b": 5 * two}

    closing = custom_gradient(lambda x: (x + tf.reduce_sum(constant), lambda upstream: 7 * upstream))

    class Module(tf.Module):
        def __init__(self):
            self.v = tf.Variable(2 * X)

        @tf.function(input_signature=[vector])
        def f(self, x):
            return f(x)

        @tf.function(input_signature=[vector, vector])
        def nested(self, a, b):
            return nested({"a": a, "b": b}, n=3)

        @tf.function(input_signature=[vector])
        def captures(self, x):
            return custom_gradient(lambda x: (x * self.v, lambda u, variables: (7 * u, [11 * u])))(x)

        @tf.function(input_signature=[vector])
        def closing(self, x):
            return closing(x)

    for rules in (True, False):
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=rules)
        tf.saved_model.save(Module(), str(tmp_path / str(rules)), options=options)
    run(
        """
        import sys
        import numpy as np, tensorflow as tf

        X = np.array([-1.0, 0.5, 1.0], np.float32)
        x, y = tf.constant(X), tf.constant(X)
        module = tf.saved_model.load(sys.argv[1] + "/True")
        assert "keras_cg" not in sys.modules

        def gradients(g, *inputs):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                output = g(*inputs)
            return tape.gradient(output, inputs)

        def check(found, expected):
            np.testing.assert_allclose(found, expected, rtol=1e-5)

        exp = 7 * np.exp(X.astype(float))
        for g in (module.f, tf.function(module.f), tf.function(module.f, jit_compile=True)):
            check(g(x), 2 * X)
            check(gradients(g, x)[0], exp)
            check(gradients(lambda x: gradients(g, x)[0], x)[0], exp)
        with tf.autodiff.ForwardAccumulator(x, tf.ones(3)) as accumulator:
            output = module.f(x)
        check(accumulator.jvp(output), exp)
        ga, gb = gradients(module.nested, x, y)
        check(ga, exp)
        check(gb, np.full(3, 5.0))
        gx, gv = gradients(lambda x, v: module.captures(x), x, module.v)
        check(gx, np.full(3, 7.0))
        check(gv, np.full(3, 11.0))
        check(gradients(module.closing, x)[0], np.full(3, 7.0))

        def check_refused():
            without = tf.saved_model.load(sys.argv[1] + "/False")
            for name, inputs in {"f": [x], "nested": [x, y], "captures": [x], "closing": [x]}.items():
                try:
                    found = gradients(getattr(without, name), *inputs)
                except LookupError as error:
                    assert "No gradient defined for operation" in str(error)
                else:
                    raise AssertionError(f"the rule of {name} was dropped, or is another one: {found}")

        check_refused()
        from keras_cg import custom_gradient

        other = custom_gradient(lambda x: (x * 2, lambda upstream: 11 * upstream))
        for _ in range(100):
            tf.function(other)(x)
        check_refused()
        """,
        str(tmp_path),
    )


def test_a_model_is_saved_without_a_warning_of_autograph(eager, tf, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(tf.get_logger(), "warning", lambda text, *values: told.append(text % values))

    def helper(upstream):  # which AutoGraph has to rewrite
        if tf.reduce_sum(upstream) > 0:
            upstream = 7 * upstream
        return upstream

    branching = custom_gradient(lambda x: (tf.exp(x), lambda upstream: helper(upstream)))
    module = tf.Module()
    module.call = tf.function(lambda x: f(branching(x)), input_signature=[tf.TensorSpec([3], tf.float32)])
    tf.saved_model.save(module, str(tmp_path), options=tf.saved_model.SaveOptions(experimental_custom_gradients=True))
    assert [each for each in told if "AutoGraph" in each] == []


@pytest.mark.limit
def test_a_loaded_loop_or_branch_around_a_rule_is_not_differentiated(eager, tf, tmp_path):
    """A limit of TensorFlow (2.21): what is loaded lacks what the rule holds of a step, or of a branch."""

    @custom_gradient
    def g(x):
        e = tf.exp(x)
        return x * 2, lambda upstream: 7 * upstream * e

    looped = lambda x: tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, g(x)), (0, x))[1]
    module = tf.Module()
    module.straight = tf.function(lambda x: g(x), input_signature=[tf.TensorSpec([None])])
    module.looped = tf.function(looped, input_signature=[tf.TensorSpec([None])])
    module.branched = tf.function(
        lambda x: tf.cond(x[0] < 9, lambda: g(x), lambda: x), input_signature=[tf.TensorSpec([None])]
    )
    x = eager.tensor(X)
    close(gradients(module.looped, x)[0], 7 * EXP * 7 * np.exp(2 * X.astype(float)))
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    close(gradients(loaded.straight, x)[0], 7 * EXP)
    with pytest.raises(TypeError, match="is out of scope and cannot be used here"):
        gradients(loaded.looped, x)
    with pytest.raises(AssertionError):
        gradients(loaded.branched, x)
