"""Served destinations for the tests of operations by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Destination
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service

Serve = Callable[[Destination], Awaitable[str]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Serves destinations, gives their URLs, and closes them before ``tmp_path`` with their stores is removed."""
    services: list[Any] = []

    async def start(app: Destination) -> str:
        service = Service(app, Listeners(port=0, admin=AdminListener(port=0)))
        await service.start()
        services.append(service)
        return service.url

    yield start
    for service in services:
        await service.close(0.5)
