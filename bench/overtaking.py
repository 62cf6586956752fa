"""A destination in order that drops early messages, as WCF does by default: the default window and a window of one.

    python bench/overtaking.py                          # pauses of 0, 4 and 40 ms in the server
    python bench/overtaking.py --pauses 4 --messages 200 --keeps --json

The server is another process, with a real socket. It handles each message after a random pause of up to this many
milliseconds, so that messages on several connections overtake each other, and answers an early one with an empty 202.
With ``--keeps`` it keeps them. A run sends messages of 1 KB in one Sequence from a source in memory. Both windows run
in alternation, and the ratio of a row is the median of the rounds. The benchmark has no pass or fail.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import httptools
from sending import ACTION, BODY, start, stop

_RM = "http://docs.oasis-open.org/ws-rx/wsrm/200702"
_ENVELOPE = (
    '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://www.w3.org/2005/08/addressing" '
    f'xmlns:r="{_RM}"><s:Header>%s<a:Action>{_RM}/%s</a:Action>%s</s:Header><s:Body>%s</s:Body></s:Envelope>'
)
_IDENTIFIER = "urn:bench:%d"
_NUMBER = re.compile(rb"Identifier>urn:bench:(\d+)<.{0,80}?MessageNumber>(\d+)<", re.S)
_ENDING = re.compile(rb":?(CloseSequence|TerminateSequence)[ />].*?Identifier>urn:bench:(\d+)<", re.S)
_MESSAGE_ID = re.compile(rb"MessageID[^>]*>([^<]+)<")


class Sequences:
    """The server's state of each Sequence.

    Args:
        pause: Maximum seconds before a message is handled.
        keeps: Whether it keeps early messages.
    """

    def __init__(self, pause: float, *, keeps: bool) -> None:
        self.pause = pause
        self.keeps = keeps
        self.taken: list[set[int]] = []
        self.done: list[int] = []
        self.chance = random.Random(0)

    def answer(self, body: bytes) -> bytes:
        """Return the envelope that answers a request, b"" for an empty 202."""
        found = _NUMBER.search(body)
        if found is not None:
            return self._take(int(found[1]), int(found[2]))
        relates_to = f"<a:RelatesTo>{cast(re.Match[bytes], _MESSAGE_ID.search(body))[1].decode()}</a:RelatesTo>"
        ending = _ENDING.search(body)
        if ending is None:
            self.taken.append(set())
            self.done.append(0)
            content = "<r:CreateSequenceResponse><r:Identifier>%s</r:Identifier></r:CreateSequenceResponse>"
            granted = content % (_IDENTIFIER % (len(self.taken) - 1))
            return (_ENVELOPE % ("", "CreateSequenceResponse", relates_to, granted)).encode()
        name, index = ending[1].decode() + "Response", int(ending[2])
        content = f"<r:{name}><r:Identifier>{_IDENTIFIER % index}</r:Identifier></r:{name}>"
        return (_ENVELOPE % (self._acknowledgement(index, "<r:Final/>"), name, relates_to, content)).encode()

    def _take(self, index: int, number: int) -> bytes:
        taken = self.taken[index]
        if number > self.done[index] + 1 and not self.keeps:
            return b""
        if number > self.done[index]:
            taken.add(number)
        while self.done[index] + 1 in taken:
            self.done[index] += 1
            taken.discard(self.done[index])
        return (_ENVELOPE % (self._acknowledgement(index), "SequenceAcknowledgement", "", "")).encode()

    def _acknowledgement(self, index: int, final: str = "") -> str:
        done = self.done[index]
        ranges = [(1, done)] if done else []
        ranges += [(number, number) for number in sorted(self.taken[index])]
        text = "".join(f'<r:AcknowledgementRange Lower="{lower}" Upper="{upper}"/>' for lower, upper in ranges)
        identifier = f"<r:Identifier>{_IDENTIFIER % index}</r:Identifier>"
        return f"<r:SequenceAcknowledgement>{identifier}{text}{final}</r:SequenceAcknowledgement>"


class Listener(asyncio.Protocol):
    """One connection with one request at a time."""

    def __init__(self, sequences: Sequences) -> None:
        self._sequences = sequences

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        pause = self._sequences.pause * self._sequences.chance.random()
        if pause and b"MessageNumber>" in body:
            asyncio.get_running_loop().call_later(pause, self._answer, body)
        else:
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        content = self._sequences.answer(body)
        head = b"HTTP/1.1 %b\r\nContent-Type: application/soap+xml; charset=utf-8\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % (b"200 OK" if content else b"202 Accepted", len(content)) + content)


async def serve(pause: float, *, keeps: bool) -> None:
    """Serve until the end of standard input."""
    sequences = Sequences(pause, keeps=keeps)
    server = await asyncio.get_running_loop().create_server(lambda: Listener(sequences), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


async def send(url: str, messages: int, window: int | None) -> tuple[float, int]:
    """Return the messages per second, and the number of repeats. ``window``: None for the default."""
    import holdfast

    policy = holdfast.SourcePolicy() if window is None else holdfast.SourcePolicy(window=window, initial_window=window)
    versions = holdfast.Versions("1.1", "2005/08", "1.2")
    async with holdfast.Source(url, ":memory:", versions=versions, offer=False, policy=policy) as source:
        await (await source.send(BODY, action=ACTION)).acknowledged()
        began = time.perf_counter()
        for _ in range(messages - 1):
            await source.send(BODY, action=ACTION)
        await source.flush()
        seconds = time.perf_counter() - began
        return (messages - 1) / seconds, source.progress.resent


def measure(pause: float, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one pause, in milliseconds."""
    from holdfast.http.server.server import event_loop_factory

    messages = options.messages or (600 if pause else 6_000)
    keeps = ["--keeps"] if options.keeps else []
    server, port = start(__file__, "--serve", str(pause / 1000), *keeps)
    url = f"http://127.0.0.1:{int(port)}/"
    rates: dict[int | None, list[float]] = {1: [], None: []}
    repeats = []
    try:
        for _ in range(options.rounds):
            for window, rate in rates.items():
                with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
                    told, resent = runner.run(send(url, messages, window))
                rate.append(told)
                if window is None:
                    repeats.append(resent)
    finally:
        stop(server)
    ratios = [usual / one for one, usual in zip(rates[1], rates[None], strict=True)]
    return {
        "pause_ms": pause,
        "window_1": statistics.median(rates[1]),
        "default": statistics.median(rates[None]),
        "ratio": statistics.median(ratios),
        "repeats": statistics.median(repeats) / messages,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pauses", type=float, nargs="+", default=[0.0, 4.0, 40.0], help="milliseconds")
    parser.add_argument("--messages", type=int, help="in each run; default: 600, without a pause 6,000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keeps", action="store_true", help="the server keeps early messages")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        from holdfast.http.server.server import event_loop_factory

        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.run(serve(options.serve, keeps=options.keeps))
        return
    rows = [measure(pause, options) for pause in options.pauses]
    if options.json:
        print(json.dumps(rows))
        return
    print("| pause, ms | window of 1, msg/s | default, msg/s | ratio | repeats |\n|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['pause_ms']:g} | {row['window_1']:.0f} | {row['default']:.0f} "
            f"| {row['ratio']:.2f} | {100 * row['repeats']:.1f} % |"
        )


if __name__ == "__main__":
    main()
