"""One admin listener for several workers, of which one is away or refuses: that is told, and never read as absence.

The workers are servers at Unix sockets, which answer what the test wants; who asks them is the real one.
"""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from unstarted import unstarted

from holdfast.endpoint.admin.application import Admin
from holdfast.endpoint.admin.merged.application import JoinedAdmin
from holdfast.endpoint.admin.numbering import Numbering
from holdfast.endpoint.admin.routes import Joined, Refused, named_parts
from holdfast.endpoint.worker import Worker
from holdfast.endpoint.workers.placement import Loads, Placement, Placements
from holdfast.endpoint.workers.routing import Neighbours, Place
from holdfast.http.direct import DirectExchange
from holdfast.http.exchange import HTTPLimits, Request
from holdfast.http.server.server import HTTPServer

ROUTES = Admin(unstarted()).routes.table
CHANGES = [
    f"{one.method} {one.path}"
    for one in ROUTES
    if one.method != "GET" and one.joined in (Joined.EACH, Joined.WILLING, Joined.SEQUENCE, Joined.LETTER)
]
"""Requests that can change something in all workers."""
COUNT = 3
ABSENT = (404, {"error": "the sink 'alerts' does not exist", "remedy": "List the sinks with holdfast sinks."})
HERE = (200, {"name": "alerts", "batch": 4})
BUSY = (503, {"error": "the disk is nearly full", "remedy": "Make room."})
BROKEN = (500, "no JSON")


class Workers:
    """Three workers, each of which answers every request in its own way, or not at all (None)."""

    def __init__(self, directory: Path) -> None:
        self.answers: list[tuple[int, Any] | None] = [ABSENT] * COUNT
        self.shown: list[tuple[int, Any]] = []
        """The answers to GET, if they are others."""
        self.asked: list[tuple[int, str, str]] = []
        self.paths = tuple(str(directory / str(number)) for number in range(COUNT))

    async def start(self) -> None:
        self.runners = [web.AppRunner(self._app(number)) for number in range(COUNT)]
        for runner, path in zip(self.runners, self.paths, strict=True):
            await runner.setup()
            await web.UnixSite(runner, path).start()

    def _app(self, number: int) -> web.Application:
        async def answer(request: web.Request) -> web.Response:
            self.asked.append((number, request.method, request.path))
            said = self.shown[number] if self.shown and request.method == "GET" else self.answers[number]
            if said is None:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            return web.Response(status=said[0], text=said[1] if isinstance(said[1], str) else json.dumps(said[1]))

        app = web.Application()
        app.router.add_route("*", "/{what:.*}", answer)
        return app


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[Workers]:
    one = Workers(tmp_path)
    await one.start()
    yield one
    for runner in one.runners:
        await runner.cleanup()


@pytest.fixture
async def joined(workers: Workers, tmp_path: Path) -> AsyncIterator[JoinedAdmin]:
    inbox, (taking, giving) = socket.socket(socket.AF_UNIX), socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    inbox.bind(str(tmp_path / "inbox"))
    inbox.listen()
    placements = Placements()
    placements.set(Placement(frozenset(range(COUNT))))
    place = Place(Worker(0, COUNT), workers.paths, inbox, taking, (giving,) * COUNT, Loads(COUNT), placements)
    neighbours = Neighbours(place, unstarted(), HTTPServer())
    await neighbours.start(HTTPLimits())
    yield JoinedAdmin(neighbours, Numbering(0, COUNT, 2))
    await neighbours.close()
    for one in (taking, giving):
        one.close()


async def ask(joined: JoinedAdmin, method: str, path: str, body: bytes = b"", **names: str) -> Any:
    route = next(one for one in ROUTES if (one.method, one.path) == (method, path))
    exchange = DirectExchange(Request(method, "/", {}, body, "test", False))
    await joined.answer(route, exchange, "epoch=e" if "partition" in names else "", names)
    return json.loads((await exchange.response).body)


async def test_a_sink_is_asked_for_where_it_is_though_another_worker_is_away(
    workers: Workers, joined: JoinedAdmin
) -> None:
    for others in (ABSENT, BUSY, BROKEN, None):
        workers.answers = [others, HERE, ABSENT]
        assert (await ask(joined, "GET", "sinks/{sink}", sink="alerts"))["batch"] == 4


@pytest.mark.parametrize(
    ("answer", "status", "why"), [(BUSY, 503, "disk"), (BROKEN, 500, "no JSON"), (None, 503, "does not answer")]
)
@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/parts"), ("POST", "/discard"), ("DELETE", "")])
async def test_a_sink_is_not_made_nor_missing_while_a_worker_that_may_have_it_does_not_say(
    workers: Workers, joined: JoinedAdmin, answer: Any, status: int, why: str, method: str, path: str
) -> None:
    for away in range(COUNT):
        workers.answers = [ABSENT] * COUNT
        workers.answers[away] = answer
        workers.asked.clear()
        with pytest.raises(Refused, match=why) as refused:
            await ask(joined, method, "sinks/{sink}" + path, sink="alerts")
        assert (refused.value.status, f"worker {away}" in refused.value.message) == (status, True)
        assert {one[1:] for one in workers.asked} == {("GET", "/admin/sinks/alerts")}


async def test_a_queue_whose_epoch_one_worker_does_not_say_is_not_asked_about(
    workers: Workers, joined: JoinedAdmin
) -> None:
    workers.answers = [(200, {"queues": {"inbox": {"epoch": "e"}}})] * COUNT
    workers.answers[1] = BUSY
    with pytest.raises(Refused, match=r"disk is nearly full.*worker 1") as refused:
        await ask(joined, "GET", "queues/{name}/{partition}/messages", name="inbox", partition="0")
    assert refused.value.status == 503


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("answer", "why"), [(BUSY, "disk is nearly full"), (BROKEN, "no JSON"), (None, "answer")])
async def test_a_change_that_some_workers_made_is_told_with_what_failed(
    workers: Workers, joined: JoinedAdmin, change: str, answer: Any, why: str
) -> None:
    method, path = change.split(" ")
    names = {name: "all" for name, _ in named_parts(path)}
    for failed, told in (({0}, "; done in 2 of 3 workers"), ({0, 2}, "; done in 1 of 3 workers"), ({0, 1, 2}, "")):
        workers.answers = [answer if number in failed else (200, {}) for number in range(COUNT)]
        with pytest.raises(Refused, match=why) as refused:
            await ask(joined, method, path, **names)
        assert refused.value.message.endswith(told)
        assert ("done" in refused.value.message) == bool(told)


@pytest.mark.parametrize("path", ["dead-letters/{letter}/discard", "dead-letters/{letter}/retry"])
async def test_a_change_at_one_worker_counts_what_is_left_at_all(
    workers: Workers, joined: JoinedAdmin, path: str
) -> None:
    workers.answers = [(200, {"retried": 1, "discarded": 1, "count": 2})] * COUNT
    assert (await ask(joined, "POST", path, letter="7"))["count"] == 2 * COUNT
    workers.answers[1] = None
    assert (await ask(joined, "POST", path, letter="7"))["count"] is None, "the letter is discarded all the same"


@pytest.mark.parametrize(("method", "path"), [("GET", "forwarders"), ("POST", "queues/{name}/purge")])
async def test_a_request_that_only_reads_tells_of_no_change(
    workers: Workers, joined: JoinedAdmin, method: str, path: str
) -> None:
    workers.answers = [(200, {}), None, (200, {})]
    with pytest.raises(Refused, match="worker 1 does not answer") as refused:
        await ask(joined, method, path, b'{"dry_run": true}', name="inbox")
    assert "done" not in refused.value.message


@pytest.mark.parametrize("how", ["suspend", "resume"])
async def test_a_wanted_state_that_some_workers_have_is_no_error(
    workers: Workers, joined: JoinedAdmin, how: str
) -> None:
    """The answer has the partitions of all workers that know the forwarder, whichever of them has changed it."""
    workers.shown = [
        (200, {"forwarders": [{"key": f"forwarder/shop/{number}"}], "count": 1}) for number in range(COUNT)
    ]
    refused = (409, {"error": "it is not suspended"})
    for states in itertools.product(("done", refused, ABSENT, BUSY), repeat=COUNT):
        workers.answers = [shown if one == "done" else one for one, shown in zip(states, workers.shown, strict=True)]
        call = ask(joined, "POST", "forwarders/{name}/{how:suspend|resume}", name="a/shop", how=how)
        if BUSY in states or "done" not in states:
            with pytest.raises(Refused):
                await call
            continue
        answer, known = await call, [number for number, one in enumerate(states) if one != ABSENT]
        assert [one["key"] for one in answer["forwarders"]] == [f"forwarder/shop/{number}" for number in known]
        assert answer["count"] == len(known)
    assert {path for _, method, path in workers.asked if method == "GET"} == {"/admin/forwarders/a/shop"}


async def test_a_refusal_that_all_workers_share_names_none(workers: Workers, joined: JoinedAdmin) -> None:
    for answer in (ABSENT, BUSY):
        workers.answers = [answer] * COUNT
        with pytest.raises(Refused) as refused:
            await ask(joined, "POST", "dead-letters/{letter}/retry", letter="all")
        assert refused.value.message == answer[1]["error"]
    workers.answers = [ABSENT, BUSY, ABSENT]
    with pytest.raises(Refused, match=r"full \(worker 1\)"):
        await ask(joined, "POST", "dead-letters/{letter}/retry", letter="all")
    with pytest.raises(Refused) as refused:
        await ask(joined, "POST", "dead-letters/{letter}/retry", letter="7")
    assert refused.value.message == ABSENT[1]["error"]
