"""The audit: it accounts for every message of a journal and names every gap.

This package owns the rules and their counters. It knows no server and no command: a journal is a DataFrame. Open
``rules`` first, then ``findings``.
"""

from holdfast.pipeline.audit.findings import Audit, audit

__all__ = ["Audit", "audit"]
