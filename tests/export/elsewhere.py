"""Loads what was exported, as a program does that has no keras_cg; run as a script by the tests.

`python elsewhere.py FOLDER` reads FOLDER/programs.json, `{name: [format, path]}`, and FOLDER/x.npy, and writes
FOLDER/found.json: for each name the output, and what became of the gradient.
"""

import json
import pathlib
import sys
import warnings

import numpy as np

# An import of it here raises an ImportError.
sys.modules["keras_cg"] = None

FOLDER = pathlib.Path(sys.argv[1])
X = np.load(FOLDER / "x.npy")


def orders(f, derivative, count):
    """The derivatives of so many orders: each as an array, or what is raised instead of the first that is missing."""
    found = {}
    for order in range(1, count + 1):
        f = derivative(f)
        try:
            gradient = f(X)
        except (LookupError, ValueError) as error:
            found[f"order {order}"] = "LookupError" if isinstance(error, LookupError) else str(error)
            break
        if gradient is None:
            break
        found[f"order {order}"] = np.asarray(gradient)
    return found


def saved_model(path):
    """The output, its derivatives, and the weight after a step of training."""
    import tensorflow as tf

    module = tf.saved_model.load(path)
    found = {"output": np.asarray(module.serve(tf.constant(X)))}
    if "trainable" in path or path.endswith("archive"):
        found["trained"] = trained(tf, module)

    def derivative(f):
        def derived(x):
            x = tf.convert_to_tensor(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                output = f(x)
            return tape.gradient(output, x)

        return derived

    return found | orders(module.serve, derivative, 3)


def trained(tf, module):
    """The weight after a step of training here."""
    (weight,) = module.trainable_variables
    before = weight.numpy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(module.serve(tf.constant(X)))
    weight.assign_sub(0.5 * tape.gradient(loss, weight))
    after = weight.numpy()
    weight.assign(before)
    return after


def litert(path):
    import tensorflow as tf

    with warnings.catch_warnings():
        # That TensorFlow will drop it for a package of its own, ai-edge-litert.
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(model_path=path)
    (given,), (output,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], X.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], X)
    interpreter.invoke()
    return {"output": interpreter.get_tensor(output["index"])}


def onnx(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    (given,) = session.get_inputs()
    return {"output": session.run(None, {given.name: X})[0]}


def pt2(path):
    import torch

    module = torch.export.load(path).module()
    x = torch.tensor(X, requires_grad=True)
    output = module(x)
    gradient = None
    if output.requires_grad:
        (gradient,) = torch.autograd.grad(output.sum(), x, allow_unused=True)
    return {"output": output.detach().numpy(), "order 1": "absent" if gradient is None else gradient.numpy()}


def jax_program(path):
    """A function of one argument, in the form of jax.export, and its derivatives as far as they were saved."""
    import jax
    import jax.export

    f = jax.export.deserialize(bytearray(pathlib.Path(path).read_bytes())).call
    return {"output": np.asarray(f(X))} | orders(f, lambda f: jax.grad(lambda x: f(x).sum()), 4)


LOADERS = {"tf_saved_model": saved_model, "litert": litert, "onnx": onnx, "torch": pt2, "jax.export": jax_program}


if __name__ == "__main__":
    programs = json.loads((FOLDER / "programs.json").read_text())
    found = {name: LOADERS[kind](path) for name, (kind, path) in programs.items()}
    (FOLDER / "found.json").write_text(json.dumps(found, default=lambda array: array.tolist()))
