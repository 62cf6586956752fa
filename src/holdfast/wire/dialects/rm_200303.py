"""The dialect of WS-ReliableMessaging 2003/03 (March 2003).

Its schema is published. No public text names its actions, so they have the form of those of 2004/03.
"""

from __future__ import annotations

from holdfast.core.versions import RM
from holdfast.wire.dialects.dialect import EARLY_ASSERTIONS, UTILITY_NS, Dialect

NAMESPACE = "http://schemas.xmlsoap.org/ws/2003/03/rm"

DIALECT = Dialect(
    rm=RM.V2003_03,
    namespace=NAMESPACE,
    policy_assertions=tuple(f"{{{NAMESPACE}}}{local}" for local in EARLY_ASSERTIONS),
    # It has no acknowledgement of nothing. This is 1.0's, for a peer that asks for an acknowledgement.
    nothing_accepted='<wsrm:AcknowledgmentRange Lower="0" Upper="0"/>',
    range_of_nothing=(0, 0),
    detail_wrapped=False,
    has_behavior=False,
    fault_action="",
    has_nack=False,
    fault_identified=True,
    fault_detailed=True,
    identifier_namespace=UTILITY_NS,
    acknowledgement="SequenceAcknowledgment",
    acknowledgement_range="AcknowledgmentRange",
    terminate_header="SequenceTerminate",
    separators="/#",
)
