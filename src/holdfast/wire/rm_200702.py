"""WS-ReliableMessaging 1.1 and 1.2 (namespace 200702): what only these versions say."""

from __future__ import annotations

from holdfast.core.messages import (
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.versions import RM
from holdfast.wire.rm import Dialect

DIALECT = Dialect(
    rm=RM.V1_1,
    bodies={
        "CreateSequence": CreateSequence,
        "CreateSequenceResponse": CreateSequenceResponse,
        "CloseSequence": CloseSequence,
        "CloseSequenceResponse": CloseSequenceResponse,
        "TerminateSequence": TerminateSequence,
        "TerminateSequenceResponse": TerminateSequenceResponse,
        # CXF creates the reverse sequence of a decoupled exchange with these two, which no schema has.
        "CreateSequenceOneway": CreateSequence,
        "CreateSequenceResponseOneway": CreateSequenceResponse,
    },
    nothing_accepted="<wsrm:None/>",
    has_final=True,
    has_last_message=False,
    detail_wrapped=True,
)
