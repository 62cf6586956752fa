"""A block with the wrong keyword, or without await, is refused with the right way to write it."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from typing import Any

import pytest
from order_service import WSDL

import holdfast
from holdfast import ConfigurationError, Source
from holdfast.zeep import AsyncTransport, Transport

URL = "http://127.0.0.1:9/"


@pytest.mark.parametrize(
    ("made", "remedy"),
    [
        (Source(URL, ":memory:"), "Write 'async with Source(…)', or 'with holdfast.sync.Source(…)'"),
        (AsyncTransport(":memory:"), "Write 'async with AsyncTransport(…)', or 'with holdfast.zeep.Transport(…)'"),
    ],
)
def test_with_in_place_of_async_with_is_refused(made: Any, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match="is asynchronous") as caught, made:
        pytest.fail("it runs")
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("made", "remedy"),
    [
        (holdfast.sync.Source(URL, ":memory:"), "Write 'with Source(…)'."),
        (Transport(":memory:"), "Write 'with Transport(…)'."),
    ],
)
async def test_async_with_in_place_of_with_is_refused(made: Any, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match="blocks") as caught:
        async with made:
            pytest.fail("it runs")
    assert caught.value.remedy == remedy


async def test_a_source_from_a_wsdl_that_is_not_awaited_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        making: Any = Source.from_wsdl(str(WSDL), ":memory:", to=URL)
        with pytest.raises(ConfigurationError, match="is not awaited") as caught:
            async with making:
                pytest.fail("it runs")
        assert "async with await Source.from_wsdl(…)" in caught.value.remedy
        making = Source.from_wsdl(str(WSDL), ":memory:", to=URL)
        with pytest.raises(ConfigurationError, match="is not awaited"), making:
            pytest.fail("it runs")


async def test_what_makes_a_source_from_a_wsdl_is_still_a_coroutine() -> None:
    assert inspect.isawaitable(making := Source.from_wsdl(str(WSDL), ":memory:", to=URL))
    assert asyncio.iscoroutine(making)
    assert (await making).to == URL
    assert (await asyncio.create_task(Source.from_wsdl(str(WSDL), ":memory:", to=URL))).to == URL
    one, other = await asyncio.gather(*(Source.from_wsdl(str(WSDL), ":memory:", to=URL) for _ in range(2)))
    assert one is not other
    with pytest.raises(ConfigurationError, match="to cannot be 3"):
        await Source.from_wsdl(str(WSDL), to=3)  # type: ignore[arg-type]


def test_a_coroutine_may_be_run_and_cancelled() -> None:
    assert asyncio.run(Source.from_wsdl(str(WSDL), ":memory:", to=URL)).to == URL

    async def cancel() -> None:
        task = asyncio.create_task(Source.from_wsdl(str(WSDL), ":memory:", to=URL))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
