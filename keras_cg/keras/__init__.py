"""`keras_cg` in Keras: `custom_gradient` in place of Keras's own, layers, and saving.

`import keras_cg` alone imports no Keras; `keras_cg.keras` does when it is first used. A program must import it
before it loads a saved model, like every module that defines layers.
"""

from keras_cg.keras import layers
from keras_cg.keras.installation import install, installed, uninstall
from keras_cg.keras.operation import CustomGradientOperation

__all__ = ["CustomGradientOperation", "install", "installed", "layers", "uninstall"]
