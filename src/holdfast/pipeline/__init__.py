"""Spark: a server's queues as tables and streams (``format("wsrm")``), and the jobs built on that.

This package owns the Spark source and sink, and the processing of messages in jobs. It knows a server only through
``client``. It needs ``holdfast[spark]``; importing this package alone does not. Open ``source`` first; ``reader`` and
``writer`` implement it, and ``mediation`` runs a pipeline's file.
"""

from holdfast.pipeline.session import session

__all__ = ["session"]
