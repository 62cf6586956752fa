"""A store with dead letters, for the commands that look into stores."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast.testing import pair


class Desk:
    """A destination whose handler fails while the database is away, and the store it fills."""

    def __init__(self, store: Path, failing: int = 3) -> None:
        self.is_away = True
        self.handled: list[str] = []
        self.app = holdfast.Destination(store, handling=holdfast.HandlingPolicy(attempts=2))

        @self.app.on("urn:submit")
        def submit(message: holdfast.Message) -> None:
            if self.is_away:
                raise ConnectionError("the database\x1b[2J is away")
            self.handled.append(message.body.text or "")

        self.failing = failing

    def fill(self) -> None:
        with pair(self.app, store=Path(str(self.app.settings.location)).parent) as source:
            for number in range(self.failing):
                source.send(f"<n>{number}</n>", action="urn:submit")

    def serve_once(self) -> None:
        """Start it, let it do what is to be done, and close it."""

        async def run() -> None:
            await self.app.start()
            await asyncio.wait_for(self.app.handled(), 60)
            await self.app.close()

        asyncio.run(run())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Three letters in ``destination``, and nobody serves it."""
    one = Desk(tmp_path / "destination")
    one.fill()
    return one
