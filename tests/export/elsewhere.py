"""Loads what was exported, as a program does that has no keras_cg; run as a script by the tests.

`python elsewhere.py FOLDER` reads FOLDER/programs.json, `{name: [format, path]}`, and FOLDER/x.npy, and writes
FOLDER/found.json: for each name the output, and what became of the gradient.
"""

import json
import sys

import numpy as np

# Whoever imports it here gets an ImportError.
sys.modules["keras_cg"] = None

FOLDER = sys.argv[1]
X = np.load(f"{FOLDER}/x.npy")


def saved_model(path):
    """The output, the derivatives of order 1 to 3 or what is raised, and the weight after a step of training."""
    import tensorflow as tf

    module = tf.saved_model.load(path)
    found = {"output": np.asarray(module.serve(tf.constant(X)))}
    if "trainable" in path or path.endswith("archive"):
        found["trained"] = trained(tf, module)

    def derivative(f):
        def derived(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                output = f(x)
            return tape.gradient(output, x)

        return derived

    f = module.serve
    for order in (1, 2, 3):
        f = derivative(f)
        try:
            gradient = f(tf.constant(X))
        except LookupError as error:
            found[f"order {order}"] = type(error).__name__
            break
        if gradient is None:
            break
        found[f"order {order}"] = gradient.numpy()
    return found


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
    import warnings

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
    (output,) = session.run(None, {given.name: X})
    return {"output": output}


def pt2(path):
    import torch

    module = torch.export.load(path).module()
    x = torch.tensor(X, requires_grad=True)
    output = module(x)
    if output.requires_grad:
        (gradient,) = torch.autograd.grad(output.sum(), x, allow_unused=True)
    else:
        gradient = None
    return {"output": output.detach().numpy(), "order 1": "absent" if gradient is None else gradient.numpy()}


def jax_program(path):
    """A function of one argument, in the form of jax.export, and its derivatives as far as they were saved."""
    import pathlib

    import jax
    import jax.export

    f = jax.export.deserialize(bytearray(pathlib.Path(path).read_bytes())).call
    found = {"output": np.asarray(f(X))}
    for order in (1, 2, 3, 4):
        f = jax.grad(lambda x, f=f: f(x).sum())
        try:
            found[f"order {order}"] = np.asarray(f(X))
        except ValueError as error:
            found[f"order {order}"] = str(error)
            break
    return found


LOADERS = {"tf_saved_model": saved_model, "litert": litert, "onnx": onnx, "torch": pt2, "jax.export": jax_program}


def main():
    with open(f"{FOLDER}/programs.json") as file:
        programs = json.load(file)
    found = {name: LOADERS[kind](path) for name, (kind, path) in programs.items()}
    with open(f"{FOLDER}/found.json", "w") as file:
        json.dump(found, file, default=lambda array: array.tolist())


if __name__ == "__main__":
    main()
