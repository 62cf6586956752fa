"""The process that a test of the zeep transport kills: cancels orders 0 to COUNT - 1 and says each number.

    zeep_child.py WSDL STORE TO COUNT

Started again, it continues after the last call that is in its store.
"""

from __future__ import annotations

import sys

import zeep

from holdfast import RetransmissionPolicy, SourcePolicy
from holdfast.zeep import Transport

QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.3, floor=0.1, cap=0.5))


def main(wsdl: str, store: str, to: str, count: str) -> None:
    with Transport(store, to=to, policy=QUICK) as transport:
        client = zeep.Client(wsdl, transport=transport)
        for number in range(transport.source.next_offset(), int(count)):
            client.service.CancelOrder(number=number)
            print(number, flush=True)
        transport.source.flush(120)


if __name__ == "__main__":
    main(*sys.argv[1:])
