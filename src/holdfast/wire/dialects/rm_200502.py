"""The dialect of WS-ReliableMessaging 1.0 (February 2005)."""

from __future__ import annotations

from holdfast.core.messages import CreateSequence, CreateSequenceResponse
from holdfast.core.versions import RM
from holdfast.wire.dialects.dialect import Dialect

DIALECT = Dialect(
    rm=RM.V1_0,
    namespace="http://schemas.xmlsoap.org/ws/2005/02/rm",
    policy_assertions=("{http://schemas.xmlsoap.org/ws/2005/02/rm/policy}RMAssertion",),
    # 1.0 has no None. WCF writes it like this, and accepts no other form.
    nothing_accepted='<wsrm:AcknowledgementRange Lower="0" Upper="0"/>',
    range_of_nothing=(0, 0),
    detail_wrapped=False,
    has_behavior=False,
    # Implementations of 1.0 differ here; this is WCF's form.
    fault_action="",
    # CXF creates the reverse sequence of a decoupled exchange with these two, which no schema has.
    further_bodies={
        "CreateSequenceOneway": CreateSequence,
        "CreateSequenceResponseOneway": CreateSequenceResponse,
    },
)
