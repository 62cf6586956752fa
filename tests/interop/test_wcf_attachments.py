"""MTOM with the WCF client: its attachments and ours, in every version, and through a bad network."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from interop_cells import cell
from waiting import until
from wcf.destination import CONTRACT, running_destination
from wcf.grids import RM11
from wcf.live_client import LiveWCFClient, needs_the_client, versions_of
from wcf.network import LOSS, changing_network
from wcf.wire import COMBINATIONS, Profile

import holdfast
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
every_profile = pytest.mark.parametrize("profile", COMBINATIONS, ids=str)
INCLUDE = f'<data><x:Include xmlns:x="{XOP_NS}" href="cid:data@test"/></data>'


class Service:
    """A destination that notes the attachments of each message, and replies with one."""

    def __init__(self, store: str | Path = ":memory:", sleep: float = 0.0) -> None:
        self._sleep = sleep
        self.got: list[tuple[int, list[bytes]]] = []
        self.app = holdfast.Destination(store, assurance="exactly-once in-order")
        self.app.on(f"{CONTRACT}/Notify")(self._notify)
        self.app.on(f"{CONTRACT}/Echo")(self._echo)

    def _notify(self, message: holdfast.Message) -> None:
        self.got.append((message.message_number, [one.read() for one in message.attachments]))

    async def _echo(self, message: holdfast.Message) -> holdfast.WithAttachments:
        self._notify(message)
        await asyncio.sleep(self._sleep)
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
@every_profile
@cell(network=LOSS)
async def test_attachments_of_wcf_arrive_once_and_in_order_through_a_bad_network(
    tmp_path: Path, profile: Profile
) -> None:
    service = Service(tmp_path / "inbox")
    async with running_destination(service.app) as url, changing_network(url, [LOSS], seed=4) as proxy:
        client = LiveWCFClient(proxy.url, contract="both", encoding="mtom", retries="50", **versions_of(profile))
        await client.run(f"open; notify 1..12 {SIZE} data; echo 13..16; close")
        await until(lambda: len(service.got) == 16)
    assert client.failed == []
    assert proxy.counts.lost > 0
    assert [number for number, _ in service.got] == list(range(1, 17))
    assert all(attachments == [DATA] for _, attachments in service.got[:12])


@pytest.mark.nightly
@every_profile
@cell(service="slow")
async def test_a_slow_service_returns_attachments_to_wcf(profile: Profile) -> None:
    service = Service(sleep=5)
    async with running_destination(service.app) as url:
        client = LiveWCFClient(url, contract="both", encoding="mtom", **versions_of(profile))
        await client.run(f"open; notify 1 {SIZE} data; echo 2; echo 3; close")
    assert client.failed == []
    assert [number for number, _ in service.got] == [1, 2, 3]
