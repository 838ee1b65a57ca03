"""`python -m keras_cg`: the command line."""

import sys

from keras_cg.command import main

sys.exit(main())
