"""The audit: every message of a journal accounted for, every gap named.

This room owns the rules and their counters. It knows no server and no command: a journal is a DataFrame. Open ``rules``
first, then ``findings``.
"""

from holdfast.pipeline.audit.findings import Audit, audit

__all__ = ["Audit", "audit"]
