"""The lessons. `python -m demos` lists them, `python -m demos.tour` shows most of them."""

import os

# One thread for matrix products, unless the variable says otherwise. For matrices of this size a
# second one gains nothing, and beside any other program the two would wait for each other: ten
# times longer was measured. NumPy reads it once, when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
