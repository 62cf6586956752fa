"""Fixtures for tests of programs that use Holdfast; pytest finds them by itself where Holdfast is installed.

Outside ``holdfast.testing``, and without an import of it here: pytest loads this in every run, also in those that have
nothing to do with Holdfast.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from holdfast import Destination
    from holdfast.testing import Network, Pair


class MakePair(Protocol):
    """What :func:`holdfast_pair` gives: :func:`holdfast.testing.pair` with the test's own directory for both stores."""

    def __call__(
        self, app: Destination, *, network: Network | None = None, store: Path | None = None, **options: Any
    ) -> Pair:
        """Join a source to ``app``; the arguments are those of :func:`holdfast.testing.pair`."""
        ...


@pytest.fixture
def holdfast_pair(tmp_path: Path) -> MakePair:
    """A source and your destination joined without sockets, in virtual time, their stores in the test's own directory.

    ``async with holdfast_pair(app) as source``, or ``with holdfast_pair(app) as source`` in a test that is not async.
    A pair finds the state of an earlier pair of the test; a pair within the block of another has a directory of its
    own.
    """
    places: dict[Path, Pair] = {}

    def make(app: Destination, *, network: Network | None = None, store: Path | None = None, **options: Any) -> Pair:
        from holdfast.testing import pair

        if store is not None:
            return pair(app, network=network, store=store, **options)
        names = ("holdfast", *(f"holdfast-{number}" for number in range(2, len(places) + 2)))
        place = next(one for name in names if (one := tmp_path / name) not in places or not places[one].is_open)
        places[place] = pair(app, network=network, store=place, **options)
        return places[place]

    return make
