"""Every number that the admin listener takes, in paths, queries and JSON: what cannot be is refused with a 4xx."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
from admin_client import ACTION, Client

from holdfast import Destination
from holdfast.endpoint.admin.routes import Route, Shape, named_parts, plain_path

HOSTILE = [
    "9" * 309,
    "9" * 5_000,
    "9" * 17,
    str(2**63),
    str(2**64),
    "-1",
    "-" + "9" * 309,
    "1e400",
    "nan",
    "inf",
    "-inf",
    "1_0",
    " 1",
    "٣",
    "²",
    "0x10",
    "",
    "1.5",
]
KNOWN = {"name": "inbox", "partition": "0", "reader": "r", "sink": "s", "batch": "0", "identifier": "urn:x"}
PAIRS = ("at", "after", "known")


@pytest.fixture
async def admin(serve: Any) -> AsyncIterator[Client]:
    app = Destination(":memory:", partitions=2)
    app.on(ACTION)(lambda message: None)
    service = await serve(app)
    async with aiohttp.ClientSession() as session:
        yield Client(session, service.admin_url, service)


def paths(route: Route) -> list[str]:
    """The route's path, once as it may be, and with each hostile number in each of its places."""
    plain = plain_path(route.path)
    names = {name: words[0] if words else KNOWN.get(name, "0") for name, words in named_parts(route.path)}
    found = [plain.format(**names)]
    for name, words in named_parts(route.path):
        found += [] if words else [plain.format(**names | {name: quote(one)}) for one in HOSTILE if one]
    return found


def queries(shape: type[Shape]) -> list[str]:
    """Every parameter with every hostile number: alone, as a partition, and as a position."""
    fields = msgspec.structs.fields(shape)
    required = "".join(f"&{one.encode_name}={'0:0' if one.name in PAIRS else 0}" for one in fields if one.required)
    found = []
    for one in fields:
        for number in HOSTILE:
            forms = [number, f"{number}:0", f"0:{number}", f"{number}:0:ab", f"0:{number}:ab"]
            asked = forms if one.name in PAIRS else forms[:1]
            found += [f"{one.encode_name}={quote(form)}{required}" for form in asked]
    return found


async def test_no_number_in_a_path_or_a_query_is_an_error_of_the_servers(admin: Client) -> None:
    bad, asked = [], 0
    async with aiohttp.ClientSession() as session:
        for route in admin.service._admin.routes.table:
            asks = [(path, "") for path in paths(route)] + [(paths(route)[0], query) for query in queries(route.query)]
            for path, query in asks if route.method == "GET" else asks[1:]:
                url = f"{admin.service.admin_url}/{path}?{query}"
                async with session.request(route.method, url, data=b"{}") as answer:
                    asked += 1
                    if answer.status >= 500 and answer.status not in (501, 503):
                        bad.append((answer.status, route.method, url[:200]))
    assert asked > 1000 and not bad


async def test_no_number_in_json_is_an_error_of_the_servers(admin: Client) -> None:
    bad = []
    async with aiohttp.ClientSession() as session:
        for route in admin.service._admin.routes.table:
            if not isinstance(route.body, type):
                continue
            fields = msgspec.structs.fields(route.body)
            for one in fields:
                for number in [10**309, 10**400, -1, 2**63, 2**64, 1.5, 1e308, 10**17]:
                    for value in (number, {"0": number}, {str(number): 0}, [number]):
                        content = {each.encode_name: "x" for each in fields if each.required} | {one.encode_name: value}
                        url = f"{admin.service.admin_url}/{paths(route)[0]}"
                        async with session.request(route.method, url, data=json.dumps(content)) as answer:
                            if answer.status >= 500 and answer.status not in (501, 503):
                                bad.append((answer.status, route.method, url, json.dumps(content)[:200]))
    assert not bad


async def test_a_time_beyond_all_times_is_refused_and_one_that_can_be_is_not(admin: Client) -> None:
    assert (await admin.ask(f"/queues/inbox/offsets?at=0:{'9' * 309}"))[0] == 400
    assert (await admin.ask(f"/queues/inbox/offsets?at=0:{'9' * 18}"))[0] == 200
    assert (await admin.ask("/queues/inbox/offsets?at=0:-1"))[0] == 200
