"""Files of settings: TOML with line numbers, values with their checks, and patterns of names.

This room owns the only way from a TOML file to checked values: a settings class describes a table, its annotations the
values, and one reader converts the table and reports every mistake of the file with its line. It knows neither the
broker's tables nor a pipeline's. Open ``tables`` first; ``lines`` finds the line of a key.

The reader is ours and not msgspec's, because ``msgspec.convert`` raises at the first mistake, and names no line and no
nearest key. Converting value by value would leave only the checks of ``bool``, ``int`` and ``str`` to it.
"""
