"""Spark: a server's queues as tables and streams (``format("wsrm")``), and the jobs built on that.

Needs ``holdfast[spark]``; importing this package alone does not.
"""

from holdfast.pipeline.session import session

__all__ = ["session"]
