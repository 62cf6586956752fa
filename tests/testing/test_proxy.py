"""The bad network itself: it loses what it says it loses, keeps the rest byte for byte, and counts right."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from holdfast.exceptions import ConfigurationError
from holdfast.testing.proxy import Fate, Faults, LossyProxy, Relayed


class Target:
    """An HTTP service that remembers every request's body and answers with what it is told to."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"chunked" in head.lower():
            body = await reader.readuntil(b"0\r\n\r\n")
        else:
            body = await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
        self.bodies.append(body)
        writer.write(self.answer)
        await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def target() -> AsyncIterator[Target]:
    service = Target()
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rm"
    async with server:
        yield service


def post(body: bytes, *fields: bytes) -> bytes:
    head = [b"POST /rm HTTP/1.1", b"Host: x", *fields]
    if not any(field.lower().startswith(b"transfer-encoding") for field in fields):
        head.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*head, b"", body])


async def ask(proxy: LossyProxy, request: bytes) -> bytes:
    """One request on a connection of its own: all that came back before the proxy closed."""
    port = int(proxy.url.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_without_faults_an_exchange_passes_byte_for_byte() -> None:
    async with target() as service, LossyProxy(service.url) as proxy:
        assert await ask(proxy, post(b"hello")) == service.answer
        assert service.bodies == [b"hello"]
        assert proxy.url.endswith("/rm")
        assert (proxy.counts.exchanges, proxy.counts.answered, proxy.counts.lost) == (1, 1, 0)


async def test_a_lost_request_is_never_seen_by_the_target() -> None:
    async with target() as service, LossyProxy(service.url, Faults(lose_request=1)) as proxy:
        assert await ask(proxy, post(b"hello")) == b""
        assert service.bodies == []
        assert proxy.counts.requests_lost == 1


async def test_a_lost_response_was_worked_on_by_the_target() -> None:
    async with target() as service, LossyProxy(service.url, Faults(lose_response=1)) as proxy:
        assert await ask(proxy, post(b"hello")) == b""
        assert service.bodies == [b"hello"]
        assert proxy.counts.responses_lost == 1


async def test_a_doubled_request_reaches_the_target_twice_and_is_answered_once() -> None:
    async with target() as service, LossyProxy(service.url, Faults(double=1)) as proxy:
        assert await ask(proxy, post(b"hello")) == service.answer
        assert service.bodies == [b"hello", b"hello"]
        assert (proxy.counts.exchanges, proxy.counts.doubled) == (1, 1)


async def test_a_delayed_request_arrives_all_the_same() -> None:
    async with target() as service, LossyProxy(service.url, Faults(delay=1, max_delay=0.001)) as proxy:
        assert await ask(proxy, post(b"hello")) == service.answer
        assert proxy.counts.delayed == 1


async def test_the_same_seed_gives_the_same_fates_and_another_seed_others() -> None:
    async def fates(seed: int) -> list[Fate]:
        seen: list[Relayed] = []
        async with (
            target() as service,
            LossyProxy(service.url, Faults(0.3, 0.3), seed=seed, on_relayed=seen.append) as proxy,
        ):
            for _ in range(40):
                await ask(proxy, post(b"x"))
        return [relayed.fate for relayed in seen]

    first = await fates(1)
    assert first == await fates(1)
    assert first != await fates(2)
    assert set(first) == {Fate.ANSWERED, Fate.REQUEST_LOST, Fate.RESPONSE_LOST}


async def test_one_fault_does_not_change_when_another_strikes() -> None:
    async def lost_requests(faults: Faults) -> list[bool]:
        seen: list[Relayed] = []
        async with target() as service, LossyProxy(service.url, faults, seed=3, on_relayed=seen.append) as proxy:
            for _ in range(20):
                await ask(proxy, post(b"x"))
        return [relayed.fate is Fate.REQUEST_LOST for relayed in seen]

    alone = await lost_requests(Faults(lose_request=0.4))
    assert any(alone)
    assert alone == await lost_requests(Faults(lose_request=0.4, double=0.5, delay=0.5, max_delay=0))


async def test_counts_add_up() -> None:
    faults = Faults(lose_request=0.2, lose_response=0.2, double=0.2, delay=0.2, max_delay=0.001)
    async with target() as service, LossyProxy(service.url, faults, seed=5) as proxy:
        answers = [await ask(proxy, post(b"x")) for _ in range(60)]
        counts = proxy.counts
        assert counts.exchanges == 60 == counts.answered + counts.requests_lost + counts.responses_lost
        assert counts.answered == sum(answer != b"" for answer in answers)
        assert len(service.bodies) == counts.answered + counts.responses_lost + counts.doubled
        assert min(counts.requests_lost, counts.responses_lost, counts.doubled, counts.delayed) > 0


async def test_a_kept_alive_connection_carries_many_exchanges() -> None:
    async with target() as service, LossyProxy(service.url) as proxy:
        answer = await ask(proxy, post(b"one") + post(b"two") + post(b"three"))
        assert answer == service.answer * 3
        assert service.bodies == [b"one", b"two", b"three"]


async def test_a_loss_ends_a_kept_alive_connection() -> None:
    async with target() as service, LossyProxy(service.url, Faults(lose_response=1)) as proxy:
        assert await ask(proxy, post(b"one") + post(b"two")) == b""
        assert service.bodies == [b"one"]


async def test_connection_close_is_obeyed() -> None:
    async with target() as service, LossyProxy(service.url) as proxy:
        assert await ask(proxy, post(b"one", b"Connection: close") + post(b"two")) == service.answer
        assert service.bodies == [b"one"]


async def test_a_chunked_request_and_a_chunked_response_pass_unchanged() -> None:
    chunked = b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with target() as service, LossyProxy(service.url) as proxy:
        service.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nTrailer: t\r\n\r\n"
        assert await ask(proxy, post(chunked, b"Transfer-Encoding: chunked")) == service.answer
        assert service.bodies == [chunked]


async def test_a_response_without_a_length_ends_with_the_connection() -> None:
    async with target() as service, LossyProxy(service.url) as proxy:
        service.answer = b"HTTP/1.1 200 OK\r\n\r\nas long as it is"
        assert await ask(proxy, post(b"one") + post(b"two")) == service.answer


async def test_a_caller_that_waits_for_100_continue_gets_it_from_the_proxy() -> None:
    async with target() as service, LossyProxy(service.url) as proxy:
        service.answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"
        answer = await ask(proxy, post(b"big", b"Expect: 100-continue"))
        assert answer == b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"


async def test_a_target_that_is_down_looks_like_a_loss_and_may_come_back() -> None:
    async with target() as service, LossyProxy("http://127.0.0.1:9/rm") as proxy:
        assert await ask(proxy, post(b"one")) == b""
        assert proxy.counts.unreachable == 1
        proxy.target = service.url
        assert await ask(proxy, post(b"one")) == service.answer


@pytest.mark.parametrize("answer", [b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", b""])
async def test_a_target_that_answers_nonsense_counts_as_unreachable(answer: bytes) -> None:
    async with target() as service, LossyProxy(service.url) as proxy:
        service.answer = answer
        assert await ask(proxy, post(b"one")) == b""
        assert proxy.counts.unreachable == 1


async def test_faults_may_heal_while_the_proxy_runs() -> None:
    async with target() as service, LossyProxy(service.url, Faults(lose_request=1)) as proxy:
        assert await ask(proxy, post(b"one")) == b""
        proxy.faults = Faults()
        assert await ask(proxy, post(b"two")) == service.answer


async def test_leaving_ends_connections_that_are_still_open() -> None:
    async with target() as service:
        async with LossyProxy(service.url) as proxy:
            port = int(proxy.url.split(":")[2].split("/")[0])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\n")  # and never the rest
            await writer.drain()
        with contextlib.suppress(ConnectionResetError):  # however it ends, it ends
            assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()


@pytest.mark.parametrize("faults", [{"lose_request": 1.5}, {"double": -0.1}, {"max_delay": -1.0}])
def test_impossible_faults_are_refused(faults: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(faults))):
        Faults(**faults)


@pytest.mark.parametrize("url", ["https://127.0.0.1/", "127.0.0.1:80", "http:///rm"])
def test_a_target_that_is_no_http_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="http URL"):
        LossyProxy(url)
