"""Lets every Spark session find the ``wsrm`` format by itself.

Spark imports each top-level module named ``pyspark_*`` and registers its ``DefaultSource``. One such module that
fails to import breaks the look-up of *every* Python data source, so this one only warns.
"""

import warnings

try:
    from holdfast.pipeline.session import check_spark

    check_spark()
    from holdfast.pipeline.source import WsrmDataSource as DefaultSource
except Exception as error:  # a package that is missing, or a Spark that is too old
    warnings.warn(f"the wsrm format of Spark is not available: {error}", ImportWarning, stacklevel=1)
else:
    __all__ = ["DefaultSource"]
