"""The dialect of WS-ReliableMessaging 2004/03 (March 2004), as Sandesha 1 and OpenLink Virtuoso speak it.

No schema of this version is published. Its headers have the content of 2003/03 in the spelling of 1.0.
"""

from __future__ import annotations

from holdfast.core.versions import RM
from holdfast.wire.dialects.dialect import EARLY_ASSERTIONS, UTILITY_NS, Dialect

NAMESPACE = "http://schemas.xmlsoap.org/ws/2004/03/rm"

DIALECT = Dialect(
    rm=RM.V2004_03,
    namespace=NAMESPACE,
    policy_assertions=tuple(f"{{{NAMESPACE}}}{local}" for local in EARLY_ASSERTIONS),
    # It has no acknowledgement of nothing. This is 1.0's, for a peer that asks for an acknowledgement.
    nothing_accepted='<wsrm:AcknowledgementRange Lower="0" Upper="0"/>',
    range_of_nothing=(0, 0),
    detail_wrapped=False,
    has_behavior=False,
    fault_action="",
    has_nack=False,
    fault_identified=True,
    identifier_namespace=UTILITY_NS,
    separators="/#",  # Virtuoso writes the second
)
