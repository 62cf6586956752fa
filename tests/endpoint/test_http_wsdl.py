"""``?wsdl``: what a destination was given, or a sentence that it was given nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from holdfast import ConfigurationError, Destination

WSDL = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<definitions xmlns="http://schemas.xmlsoap.org/wsdl/" name="Bücher"><documentation>ä</documentation></definitions>'
).encode()


async def get(url: str, method: str = "GET") -> tuple[int, str, bytes]:
    async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
        return answer.status, answer.headers.get("Content-Type", ""), await answer.read()


@pytest.mark.parametrize("query", ["?wsdl", "?WSDL", "?singleWsdl", "?wsdl=", "?wsdl&x=1"])
async def test_it_is_given_out_as_it_was_given(serve: Any, tmp_path: Path, query: str) -> None:
    file = tmp_path / "service.wsdl"
    file.write_bytes(WSDL)
    for given in (file, str(file), WSDL):
        service = await serve(Destination(":memory:", wsdl=given))
        assert await get(service.url + query) == (200, "text/xml; charset=utf-8", WSDL)
        assert await get(service.url + query, "HEAD") == (200, "text/xml; charset=utf-8", b"")


async def test_without_one_it_is_404_with_a_sentence(serve: Any) -> None:
    service = await serve(Destination(":memory:"))
    status, _, text = await get(f"{service.url}?wsdl")
    assert status == 404
    assert b"was given no WSDL" in text


@pytest.mark.parametrize(("path", "method"), [("", "GET"), ("?x=wsdl", "GET"), ("?wsdl", "DELETE"), ("?wsdl", "PUT")])
async def test_anything_else_is_405_still(serve: Any, path: str, method: str) -> None:
    service = await serve(Destination(":memory:", wsdl=WSDL))
    assert (await get(service.url + path, method))[0] == 405


async def test_it_is_given_out_under_asgi_too() -> None:
    app = Destination(":memory:", wsdl=WSDL)
    async with app.lifespan(), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as peer:
        answer = await peer.get("/?wsdl")
    assert (answer.status_code, answer.content) == (200, WSDL)


@pytest.mark.parametrize("given", [b"<a/>", b"no XML", "nothing.wsdl", 7])
def test_what_is_no_wsdl_is_refused_when_it_is_given(given: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Destination(":memory:", wsdl=given)
    assert refused.value.remedy
