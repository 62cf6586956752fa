"""Requests to the workers of other nodes in frames: connections that open, end, fall silent and are replaced.

Covers endpoint/workers/frames/streams.py.
"""

from __future__ import annotations

import asyncio

import pytest
from waiting import until
from written import Written

from holdfast.endpoint.workers.frames import streams as module
from holdfast.endpoint.workers.frames.packets import FrameReader, FrameWriter, encode_answer
from holdfast.endpoint.workers.frames.streams import NO_FRAMES, NOT_HERE, NodeStream, NodeStreams
from holdfast.http.outcome import Done, Outcome, Response, TransportError

KEYS = (b"q" * 32, b"a" * 32)
NODE = "http://node"
LOST = TransportError("refused", connected=False)


class Connection:
    """A connection that a stream has, seen from the other node."""

    def __init__(self, stream: NodeStream) -> None:
        self.stream, self.transport = stream, Written()
        self._reader, self._writer = FrameReader(KEYS[0], 1 << 20), FrameWriter(KEYS[1])
        stream.use_keys(*KEYS)
        stream.connection_made(self.transport)

    async def requests(self) -> list[tuple[int, bytes]]:
        await asyncio.sleep(0)
        return [frame for data in self.transport.taken() for frame in self._reader.feed(data)]

    def answer(self, *answers: tuple[int, bytes]) -> None:
        frames = [(number, encode_answer(Response(200, {}, body))) for number, body in answers]
        self.stream.data_received(self._writer.pack(frames))


class Streams(NodeStreams):
    """Streams to a node that a test scripts.

    Attributes:
        begun: Each stream that was to be opened, and what gets the answer.
        alone: What was sent in HTTP.
        told: The outcomes.
    """

    def __init__(self, patience: float = 60.0) -> None:
        self.begun: list[tuple[NodeStream, Done]] = []
        self.alone: list[bytes] = []
        self.told: list[Outcome] = []
        super().__init__(self._begin, self._send_alone, patience)

    def _begin(self, url: str, number: int, stream: NodeStream, done: Done) -> None:
        assert (url, stream.place) == (NODE, f"{NODE}/{number}")
        self.begun.append((stream, done))

    def _send_alone(self, place: str, content: bytes, done: Done) -> None:
        self.alone.append(content)
        done(Response(200, {}, b"alone"))

    def ask(self, content: bytes, number: int = 1) -> None:
        self.send(NODE, number, content, self.told.append)

    def open(self) -> Connection:
        """Open the stream that was begun last."""
        stream, done = self.begun[-1]
        connection = Connection(stream)
        done(Response(200, {}, b""))
        return connection

    @property
    def bodies(self) -> list[bytes | None]:
        """The contents of the answers; None for each error."""
        return [one.body if isinstance(one, Response) else None for one in self.told]


@pytest.mark.parametrize(
    ("answer", "told"),
    [(LOST, [LOST]), (Response(NO_FRAMES, {}, b""), [b"alone"]), (Response(NOT_HERE, {}, b""), [b""])],
    ids=["refused", "without frames", "not here"],
)
async def test_a_connection_that_is_answered_at_once_ends_its_request(answer: Outcome, told: list[object]) -> None:
    # As a URL without TLS is, where nodes have TLS.
    class Refused(Streams):
        def _begin(self, url: str, number: int, stream: NodeStream, done: Done) -> None:
            done(answer)

    streams = Refused()
    streams.ask(b"once")
    assert [one.body if isinstance(one, Response) else one for one in streams.told] == told
    streams.close()


async def test_requests_of_one_turn_are_one_write_and_find_their_answers() -> None:
    streams = Streams()
    streams.ask(b"before it is open")
    streams.ask(b"another")
    connection = streams.open()
    assert await connection.requests() == [(1, b"before it is open"), (2, b"another")]
    for number in range(3, 8):
        streams.ask(b"%d" % number)
    assert await connection.requests() == [(number, b"%d" % number) for number in range(3, 8)]
    assert (connection.transport.writes, len(streams.begun)) == (2, 1)
    connection.answer((5, b"five"), (1, b"one"))
    connection.answer((99, b"nobody asked"), (5, b"again"), (3, b"three"))
    assert streams.bodies == [b"five", b"one", b"three"]
    streams.close()
    assert streams.bodies[3:] == [None] * 4


async def test_each_worker_has_its_connection() -> None:
    streams = Streams()
    streams.ask(b"one", 1)
    first = streams.open()
    streams.ask(b"two", 2)
    second = streams.open()
    assert (await first.requests(), await second.requests()) == ([(1, b"one")], [(1, b"two")])


async def test_a_node_without_frames_gets_each_request_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams()
    streams.ask(b"one")
    streams.begun[0][1](Response(NO_FRAMES, {}, b""))
    streams.ask(b"two")
    assert (streams.alone, streams.bodies, len(streams.begun)) == ([b"one", b"two"], [b"alone"] * 2, 1)
    monkeypatch.setattr(module, "WITHOUT_FRAMES", -1.0)
    other = Streams()
    other.ask(b"one")
    other.begun[0][1](Response(NO_FRAMES, {}, b""))
    other.ask(b"two")
    assert await other.open().requests() == [(1, b"two")], "the node was replaced by a newer one"


@pytest.mark.parametrize("answer", [LOST, Response(503, {}, b""), Response(200, {}, b"")])
async def test_a_connection_that_does_not_open_fails_what_waits_for_it(answer: Outcome) -> None:
    streams = Streams()
    streams.ask(b"one")
    streams.ask(b"two")
    streams.begun[0][1](answer)
    assert streams.bodies == [None, None]
    streams.ask(b"three")
    assert await streams.open().requests() == [(1, b"three")]


async def test_a_worker_that_has_moved_is_asked_elsewhere() -> None:
    streams = Streams()
    streams.ask(b"one")
    streams.begun[0][1](Response(NOT_HERE, {}, b""))
    assert streams.told == [Response(421, {}, b"")]
    streams.ask(b"two")
    assert len(streams.begun) == 2 and not streams.alone


async def test_a_lost_connection_or_a_false_packet_fails_its_requests() -> None:
    streams = Streams()
    streams.ask(b"one")
    streams.open().stream.connection_lost(ConnectionResetError())
    streams.ask(b"two")
    connection = streams.open()
    connection.stream.data_received(b"\0" * 4 + bytes(32))
    assert streams.bodies == [None, None] and connection.transport.is_aborted
    assert all(isinstance(error, TransportError) and error.connected for error in streams.told)
    streams.ask(b"three")
    streams.open().answer((1, b"3"))
    assert streams.bodies[2:] == [b"3"]


async def test_a_request_of_the_turn_in_which_the_connection_ends_fails() -> None:
    streams = Streams()
    streams.ask(b"one")
    connection, loop = streams.open(), asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _loop, context: errors.append(context))
    connection.transport.close()
    connection.stream.connection_lost(None)
    await asyncio.sleep(0)
    assert streams.bodies == [None] and errors == []


async def test_a_silent_node_gets_later_requests_on_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK", 0.01)
    monkeypatch.setattr(module, "SILENCE", 0.03)
    streams = Streams()
    streams.ask(b"one")
    silent = streams.open()

    async def is_replaced() -> None:
        while len(streams.begun) == 1:
            streams.ask(b"later")
            await asyncio.sleep(0.005)

    await asyncio.wait_for(is_replaced(), 60)
    assert (1, b"one") in await silent.requests()
    silent.answer((1, b"at last"))
    assert streams.bodies == [b"at last"], "what was asked may still be answered there"
    streams.close()


async def test_an_old_connection_is_replaced_and_closes_after_its_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK", 0.01)
    monkeypatch.setattr(module, "RENEWAL", 0.02)
    streams = Streams()
    streams.ask(b"one")
    old = streams.open()
    while len(streams.begun) == 1:
        await asyncio.sleep(0.03)
        streams.ask(b"another")
    assert not old.transport.is_aborted
    old.answer(*((number, b"old") for number, _ in await old.requests()))
    await until(lambda: old.transport.is_aborted)
    assert set(streams.bodies) == {b"old"}
    streams.close()


async def test_what_is_idle_closes_and_what_waits_too_long_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK", 0.01)
    monkeypatch.setattr(module, "KEEP_ALIVE", 0.02)
    streams = Streams(patience=0.05)
    streams.ask(b"one")
    connection = streams.open()
    await until(lambda: streams.told)
    assert streams.bodies == [None]
    await until(lambda: connection.transport.is_aborted)
    streams.ask(b"two")
    assert len(streams.begun) == 2
