"""Lets every Spark session find the ``wsrm`` format by itself.

Spark imports each top-level module named ``pyspark_*`` and registers its ``DefaultSource``. One such module that
fails to import breaks the look-up of *every* Python data source, so this one only warns.
"""

import warnings

try:
    from holdfast.pipeline.source import WsrmDataSource as DefaultSource
except ImportError as error:
    warnings.warn(f"the wsrm format of Spark is not available: {error}", ImportWarning, stacklevel=1)
else:
    __all__ = ["DefaultSource"]
