"""The lessons. `python -m demos` lists them, `python -m demos.tour` shows the most of them."""
