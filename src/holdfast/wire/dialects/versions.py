"""The dialect of every version of WS-ReliableMessaging. A version without one raises here, at import."""

from __future__ import annotations

from holdfast.core.versions import RM
from holdfast.wire.dialects import rm_200303, rm_200403, rm_200502, rm_200702
from holdfast.wire.dialects.dialect import Dialect

DIALECTS: dict[RM, Dialect] = {
    dialect.rm: dialect for dialect in (rm_200303.DIALECT, rm_200403.DIALECT, rm_200502.DIALECT, rm_200702.DIALECT)
}

for _rm in RM:
    if _rm not in DIALECTS:
        raise LookupError(f"WS-RM {_rm.value} has no dialect: add it in {__name__}")
