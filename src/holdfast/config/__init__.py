"""Files of settings: TOML with line numbers, values with their checks, and patterns of names.

This room owns the steps from a file to checked values. It knows neither the broker's tables nor a pipeline's. Open
``tables`` first; ``lines`` finds the line of a key.
"""
