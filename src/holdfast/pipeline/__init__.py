"""Spark: a server's queues as tables and streams (``format("wsrm")``), and the jobs built on that.

This room owns the Spark source and sink, and what jobs do with messages. It knows a server only through ``client``. It
needs ``holdfast[spark]``; importing this package alone does not. Open ``source`` first; ``reader`` and ``writer`` are
what it hands to Spark, and ``mediation`` runs a pipeline's file.
"""

from holdfast.pipeline.session import session

__all__ = ["session"]
