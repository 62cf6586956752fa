"""MTOM with the WCF client: its attachments and ours, in every version, and through a bad network."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop_cells import SIX, cell
from waiting import until
from wcf.destination import CONTRACT, running_destination
from wcf.grids import RM11
from wcf.live_client import LiveWCFClient, needs_the_client, versions_of
from wcf.wire import COMBINATIONS, Profile

import holdfast
from holdfast.testing.proxy import Faults, LossyProxy
from holdfast.wire.attachments.references import XOP_NS

pytestmark = [
    pytest.mark.interop,
    pytest.mark.wcf,
    pytest.mark.timeout(900),
    needs_the_client,
    cell(peer="WCF", role="destination", setup="MTOM", pattern="mixed"),
]

SIZE = 3000
DATA = bytes(7 * index % 256 for index in range(SIZE))
INCLUDE = f'<data><x:Include xmlns:x="{XOP_NS}" href="cid:data@test"/></data>'


class Service:
    """A destination that notes the attachments of each message, and replies with one."""

    def __init__(self, store: str | Path = ":memory:") -> None:
        self.got: list[tuple[int, list[bytes]]] = []
        self.app = holdfast.Destination(store, assurance="exactly-once in-order")
        self.app.on(f"{CONTRACT}/Notify")(self._notify)
        self.app.on(f"{CONTRACT}/Echo")(self._echo)

    def _notify(self, message: holdfast.Message) -> None:
        self.got.append((message.message_number, [one.read() for one in message.attachments]))

    def _echo(self, message: holdfast.Message) -> holdfast.WithAttachments:
        self._notify(message)
        key, number = (message.body.findtext(f"{{*}}{name}") for name in ("key", "number"))
        text = f"<key>{key}</key><number>{number}</number><body>x</body>{INCLUDE}"
        body = f'<echoResponse xmlns="{CONTRACT}">{text}</echoResponse>'
        return holdfast.WithAttachments(body, [holdfast.Attachment(DATA, content_id="data@test")])


@pytest.mark.parametrize(
    "profile", [pytest.param(one, marks=[] if one == RM11 else pytest.mark.nightly) for one in COMBINATIONS], ids=str
)
async def test_attachments_of_wcf_arrive_and_it_reads_ours(profile: Profile) -> None:
    service = Service()
    async with running_destination(service.app) as url:
        client = LiveWCFClient(url, contract="both", encoding="mtom", **versions_of(profile))
        said = await client.run(f"open; notify 1; notify 2..4 {SIZE} data; echo 5; notify 6 200000 data; close")
    assert client.failed == []
    assert [line["answer"] for line in said if str(line["ok"]).startswith("echo")] == [5]
    assert [number for number, _ in service.got] == list(range(1, 7))
    assert [len(attachments) for _, attachments in service.got] == [0, 1, 1, 1, 0, 1]
    assert service.got[1][1] == [DATA] and len(service.got[5][1][0]) == 200_000


@pytest.mark.nightly
@cell(pattern="one-way", network=Faults(lose_request=0.1, lose_response=0.1), versions=[SIX[3]])
async def test_attachments_of_wcf_arrive_once_and_in_order_through_a_bad_network(tmp_path: Path) -> None:
    service = Service(tmp_path / "inbox")
    async with running_destination(service.app) as url:
        async with LossyProxy(url, Faults(lose_request=0.1, lose_response=0.1), seed=4) as proxy:
            client = LiveWCFClient(proxy.url, contract="both", encoding="mtom", retries="50")
            await client.run(f"open; notify 1..20 {SIZE} data; sleep 1; close")
        await until(lambda: len(service.got) == 20)
    assert [number for number, _ in service.got] == list(range(1, 21))
    assert all(attachments == [DATA] for _, attachments in service.got)
