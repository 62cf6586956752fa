"""WS-ReliableMessaging 1.0 (February 2005): what only this version says."""

from __future__ import annotations

from holdfast.core.messages import CreateSequence, CreateSequenceResponse, TerminateSequence
from holdfast.core.versions import RM
from holdfast.wire.rm import Dialect

DIALECT = Dialect(
    rm=RM.V1_0,
    bodies={
        "CreateSequence": CreateSequence,
        "CreateSequenceResponse": CreateSequenceResponse,
        "TerminateSequence": TerminateSequence,
        # CXF creates the reverse sequence of a decoupled exchange with these two, which no schema has.
        "CreateSequenceOneway": CreateSequence,
        "CreateSequenceResponseOneway": CreateSequenceResponse,
    },
    # 1.0 has no None; this is how WCF says it, and the only form it accepts.
    nothing_accepted='<wsrm:AcknowledgementRange Lower="0" Upper="0"/>',
    has_final=False,
    has_last_message=True,
    detail_wrapped=False,
)
