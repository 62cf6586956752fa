"""The dialect of WS-ReliableMessaging 1.1 and 1.2 (namespace 200702)."""

from __future__ import annotations

from holdfast.core.messages import CreateSequence, CreateSequenceResponse
from holdfast.core.versions import RM
from holdfast.wire.dialects.dialect import Dialect

DIALECT = Dialect(
    rm=RM.V1_1,
    namespace="http://docs.oasis-open.org/ws-rx/wsrm/200702",
    policy_assertions=("{http://docs.oasis-open.org/ws-rx/wsrmp/200702}RMAssertion",),
    nothing_accepted="<wsrm:None/>",
    range_of_nothing=None,
    detail_wrapped=True,
    has_behavior=True,
    fault_action="/fault",
    # CXF creates the reverse sequence of a decoupled exchange with these two, which no schema has.
    further_bodies={
        "CreateSequenceOneway": CreateSequence,
        "CreateSequenceResponseOneway": CreateSequenceResponse,
    },
    never_ignored=("UsesSequenceSTR", "UsesSequenceSSL"),
)
