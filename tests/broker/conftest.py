"""Brokers and services that run for a test, each behind a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdfast import Destination
from holdfast.broker.broker import Broker
from holdfast.broker.config import AdminConfig, BrokerConfig, ListenConfig
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service

RunBroker = Callable[..., Awaitable[Broker]]
RunService = Callable[..., Awaitable[Service]]


@pytest.fixture
async def run_broker(tmp_path: Any) -> AsyncIterator[RunBroker]:
    """Runs brokers until the test is over; what it is given is :class:`BrokerConfig`'s."""
    brokers = []

    async def run(**told: Any) -> Broker:
        told = {
            "store": str(tmp_path / "broker"),
            "listen": ListenConfig(port=0),
            "admin": AdminConfig(port=0),
            "partitions": 2,
        } | told
        broker = Broker(BrokerConfig(**told))
        brokers.append(broker)
        await broker.service.start()
        return broker

    yield run
    for broker in brokers:
        await broker.service.close(0.5)


@pytest.fixture
async def run_service() -> AsyncIterator[RunService]:
    """Runs services until the test is over."""
    services = []

    async def run(app: Destination, port: int = 0) -> Service:
        service = Service(app, Listeners(port=port))
        services.append(service)
        await service.start()
        return service

    yield run
    for service in services:
        await service.close(0.5)
