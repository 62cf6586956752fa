"""TLS in pieces: what arrives is what was sent, buffers stay small, and every end of a connection is told apart."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import closing
from random import Random
from typing import Any

import pytest
import trustme
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import until

from examples import examples
from holdfast.http import tls_transport
from holdfast.http.client.client import HTTPClient
from holdfast.http.outcome import Response, TransportError
from holdfast.http.server.server import HTTPServer
from holdfast.http.tls_transport import HIGH_WATER, RECORD_BYTES, TLSTransport

AUTHORITY = trustme.CA()
SERVER = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
AUTHORITY.issue_cert("127.0.0.1").configure_cert(SERVER)
CLIENT = ssl.create_default_context()
AUTHORITY.configure_trust(CLIENT)
ONE_RECORD = RECORD_BYTES + 256
"""Bytes of a record as it goes over the network, at most (RFC 8446 section 5.2)."""


class Wire(asyncio.Transport):
    """A plain transport in memory. It holds what is written until the test delivers it to the other side."""

    def __init__(self) -> None:
        super().__init__()
        self.other: asyncio.Protocol
        self.own: asyncio.Protocol
        self.unsent = bytearray()
        self.is_paused = self.has_eof = self.is_closed = self.is_lost = False

    def write(self, data: Any) -> None:
        self.unsent += data
        if len(self.unsent) > HIGH_WATER:
            self.own.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def deliver(self, size: int) -> None:
        """Let so many bytes arrive."""
        data = bytes(self.unsent[:size])
        del self.unsent[:size]
        if data:
            self.other.data_received(data)
        if len(self.unsent) <= HIGH_WATER // 4:
            self.own.resume_writing()

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True
        self.unsent.clear()


class App(asyncio.Protocol):
    """What uses TLS: notes what it hears."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.got = bytearray()
        self.is_paused = self.has_eof = False
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data

    def eof_received(self) -> None:
        self.has_eof = True

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)

    def pause_writing(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_writing(self) -> None:
        assert self.is_paused
        self.is_paused = False


class Pair:
    """A client and a server in TLS over two wires."""

    def __init__(self) -> None:
        self.apps = App(), App()
        self.tls = (
            TLSTransport(self.apps[0], CLIENT, server_hostname="127.0.0.1"),
            TLSTransport(self.apps[1], SERVER, server_side=True),
        )
        self.wires = Wire(), Wire()
        for own, other in ((0, 1), (1, 0)):
            self.wires[own].own, self.wires[own].other = self.tls[own], self.tls[other]
        for wire, tls in zip(self.wires, self.tls, strict=True):
            tls.connection_made(wire)

    def deliver(self, size: int = 1 << 20) -> bool:
        """Let bytes arrive on both sides; whether there were any."""
        is_any = any(wire.unsent for wire in self.wires)
        for wire in self.wires:
            wire.deliver(size)
        return is_any

    def deliver_all(self) -> None:
        while self.deliver():
            pass

    def check_buffers(self) -> None:
        for tls, wire in zip(self.tls, self.wires, strict=True):
            assert tls._outgoing.pending == 0
            assert tls._incoming.pending <= ONE_RECORD
            assert len(wire.unsent) <= HIGH_WATER + tls_transport.TOGETHER_BYTES + ONE_RECORD


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([1, 100, 16_384, 16_385, 70_000, 300_000])), max_size=12),
    st.sampled_from([1_000, 16_384, 40_000, 1 << 20]),
    st.integers(0, 1 << 32),
)
async def test_what_arrives_is_what_was_sent_through_buffers_of_one_record(
    writes: list[tuple[bool, int]], size: int, seed: int
) -> None:
    random, pair = Random(seed), Pair()
    sent = bytearray(), bytearray()
    pair.deliver_all()
    for is_servers, length in writes:
        data = random.randbytes(length)
        pair.tls[is_servers].write(data)
        sent[is_servers].extend(data)
        buffered = pair.tls[is_servers].get_write_buffer_size()
        assert pair.apps[is_servers].is_paused or buffered <= HIGH_WATER
        for _ in range(random.randrange(4)):
            pair.deliver(size)
            pair.check_buffers()
    while pair.deliver(size):
        pair.check_buffers()
    assert (pair.apps[1].got, pair.apps[0].got) == sent
    assert not pair.apps[0].is_paused and not pair.apps[1].is_paused
    assert pair.tls[0].get_write_buffer_size() == pair.tls[1].get_write_buffer_size() == 0


async def test_closing_sends_all_that_was_written_then_waits_for_the_peer() -> None:
    pair = Pair()
    pair.deliver_all()
    client, server = pair.tls
    client.write(b"x" * 500_000)
    client.close()
    client.write(b"too late")
    assert client.is_closing() and not pair.wires[0].has_eof
    pair.deliver_all()
    assert len(pair.apps[1].got) == 500_000
    assert pair.apps[1].has_eof, "it heard close_notify"
    assert pair.wires[0].has_eof and not pair.wires[0].is_closed, "the peer's end is waited for"
    assert pair.wires[1].is_closed, "the peer answers close_notify, and closes"
    server.connection_lost(None)
    client.eof_received()
    client.connection_lost(None)
    assert pair.apps[0].lost == pair.apps[1].lost == [None]


async def test_a_peer_that_does_not_end_its_side_is_cut_off_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_transport, "SHUTDOWN_SECONDS", 0.01)
    pair = Pair()
    pair.deliver_all()
    pair.tls[0].close()
    assert not pair.wires[0].is_closed
    pair.tls[0].data_received(b"whatever it still says")
    await until(lambda: pair.wires[0].is_closed)


async def test_a_peer_that_is_gone_already_is_not_waited_for() -> None:
    pair = Pair()
    pair.deliver_all()

    def write_eof() -> None:
        raise OSError(errno.ENOTCONN, "it has reset the connection")

    pair.wires[0].write_eof = write_eof  # type: ignore[method-assign]
    pair.tls[0].close()
    assert pair.wires[0].is_closed


async def test_an_end_without_close_notify_is_a_connection_that_broke() -> None:
    pair = Pair()
    pair.deliver_all()
    pair.tls[0].eof_received()
    pair.tls[0].connection_lost(None)
    (error,) = pair.apps[0].lost
    assert isinstance(error, ConnectionResetError)


async def test_bytes_that_are_no_tls_end_the_connection_with_an_alert() -> None:
    pair = Pair()
    pair.deliver_all()
    pair.tls[1].data_received(b"\x17\x03\x03\x00\x20" + b"x" * 32)
    assert pair.wires[1].is_closed
    assert pair.wires[1].unsent, "the alert"
    pair.tls[1].connection_lost(None)
    (error,) = pair.apps[1].lost
    assert isinstance(error, ssl.SSLError)


async def test_a_handshake_that_fails_is_told_to_who_waits_for_it_and_to_nobody_else() -> None:
    app = App()
    tls = TLSTransport(app, SERVER, server_side=True)
    wire = Wire()
    wire.own = tls
    tls.connection_made(wire)
    tls.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert wire.is_closed
    tls.connection_lost(None)
    with pytest.raises(ssl.SSLError):
        await tls.shake_hands()
    assert app.transport is None and not app.lost


async def test_who_waits_no_longer_for_a_handshake_ends_the_connection() -> None:
    tls = TLSTransport(App(), SERVER, server_side=True)
    wire = Wire()
    wire.own = tls
    tls.connection_made(wire)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await tls.shake_hands()
    assert wire.is_closed


# --- real sockets, on each loop ---------------------------------------------------------------------------------------


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def on(loop: str, main: Callable[[], Any]) -> Any:
    """Run in a loop of that kind; a thread of its own, as the test has one."""
    result: list[Any] = []

    def run() -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            result.append(runner.run(asyncio.wait_for(main(), 60)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


@pytest.mark.parametrize("loop", LOOPS)
def test_large_requests_and_answers_are_whole_on_each_loop(loop: str) -> None:
    body = Random(1).randbytes(3_000_000)

    async def main() -> list[bool]:
        server = HTTPServer()
        await server.start(lambda exchange: exchange.respond(200, exchange.request.body[::-1]), "127.0.0.1", 0,
                           ssl_context=SERVER)  # fmt: skip
        async with HTTPClient(ssl_context=CLIENT) as client:
            url = f"https://127.0.0.1:{server.port}/"
            answers = await asyncio.gather(*(client.fetch("POST", url, body[n:], {}) for n in range(8)))
        await server.close()
        return [answer.body == body[n:][::-1] for n, answer in enumerate(answers)]

    assert on(loop, main) == [True] * 8


@pytest.mark.parametrize("loop", LOOPS)
def test_an_answer_that_ends_the_connection_arrives_whole_with_close_notify(loop: str) -> None:
    def ask(port: int) -> bytes:
        with closing(CLIENT.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1",
                                        suppress_ragged_eofs=False)) as peer:  # fmt: skip
            peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            got = b""
            while data := peer.recv(65_536):
                got += data
            return got

    async def main() -> int:
        server = HTTPServer()
        await server.start(lambda exchange: exchange.respond(200, b"x" * 3_000_000), "127.0.0.1", 0,
                           ssl_context=SERVER)  # fmt: skip
        got = await asyncio.to_thread(ask, server.port)
        await until(lambda: not server.connections)
        await server.close()
        return len(got.partition(b"\r\n\r\n")[2])

    assert on(loop, main) == 3_000_000


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("is_notified", [True, False])
def test_an_answer_without_a_length_counts_only_with_close_notify(loop: str, is_notified: bool) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with closing(SERVER.wrap_socket(connection, server_side=True)) as peer:
            peer.recv(65_536)
            peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n<half/>")
            if is_notified:
                peer.unwrap()

    async def main() -> Response | TransportError:
        async with HTTPClient(ssl_context=CLIENT) as client:
            try:
                return await client.fetch("POST", f"https://127.0.0.1:{listener.getsockname()[1]}/", b"", {})
            except TransportError as error:
                return error

    thread = threading.Thread(target=serve)
    thread.start()
    told = on(loop, main)
    thread.join()
    listener.close()
    if is_notified:
        assert told.body == b"<half/>"
    else:
        assert isinstance(told, TransportError)
