"""What tests train: a layer that shows what arrives, and steps written out as Keras's guides do it."""


def shift(keras, shape):
    """A layer that adds a weight of that shape to its input: the weight's gradient is what arrives."""

    class Shift(keras.layers.Layer):
        def build(self, input_shape):
            self.shift = self.add_weight(shape=shape, initializer="zeros")

        def call(self, inputs):
            return inputs + self.shift

        def compute_output_shape(self, input_shape):
            return input_shape

    return Shift(name="shift")


def own_steps(loss, with_losses=True):
    """A model class whose `train_step` does what Keras's does, with a loss of `(y, prediction)`.

    It scales the loss as the optimizer has it, and adds `model.losses`, if not told otherwise.
    """
    import keras

    def whole(prediction, losses):
        return loss(None, prediction) + (sum(losses) if with_losses else 0)

    class JaxModel(keras.Sequential):
        def train_step(self, state, data):
            import jax

            trainable, others, moments, metrics = state

            def scaled(trainable):
                prediction, changed, losses = self.stateless_call(trainable, others, data[0], return_losses=True)
                with keras.StatelessScope(list(zip(self.optimizer.variables, moments, strict=True))):
                    return self.optimizer.scale_loss(whole(prediction, losses)), changed

            gradients, changed = jax.grad(scaled, has_aux=True)(trainable)
            trainable, moments = self.optimizer.stateless_apply(moments, gradients, trainable)
            return {}, (trainable, changed, moments, metrics)

    class TorchModel(keras.Sequential):
        def train_step(self, data):
            import torch

            self.zero_grad()
            prediction = self(data[0], training=True)
            self.optimizer.scale_loss(whole(prediction, self.losses)).backward()
            with torch.no_grad():
                self.optimizer.apply([each.value.grad for each in self.trainable_weights], self.trainable_weights)
            return {}

    class TensorflowModel(keras.Sequential):
        def train_step(self, data):
            import tensorflow as tf

            with tf.GradientTape() as tape:
                prediction = self(data[0], training=True)
                scaled = self.optimizer.scale_loss(whole(prediction, self.losses))
            self.optimizer.apply(tape.gradient(scaled, self.trainable_weights), self.trainable_weights)
            return {"loss": scaled}

    return {"jax": JaxModel, "torch": TorchModel, "tensorflow": TensorflowModel}[keras.backend.backend()]
