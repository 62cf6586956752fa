"""Shelf: one kind of things that a store or a running server has: all of them listed, or one of them shown whole."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.tables import find_by_beginning, place_and_rest, print_one, print_table
from holdfast.exceptions import StoreLocked

if TYPE_CHECKING:
    from holdfast.store import Store

Things = list[dict[str, Any]]
"""The objects of one kind that the admin listener returns, as a list."""


@contextlib.contextmanager
def opened_to_look(location: str) -> Iterator[Store]:
    """Open the store for reading; another process may have it open.

    Raises:
        StoreError: It does not exist.
    """
    with opened_store(location, read_only=True) as store:
        yield store


@contextlib.contextmanager
def opened_store(location: str, *, read_only: bool) -> Iterator[Store]:
    """Open the store if it exists: a misspelt name creates none.

    Raises:
        StoreLocked: It must be changed, but another process has it open.
        StoreError: It does not exist.
    """
    from holdfast.store import open_store

    store = open_store(location, read_only=True)
    if not read_only:
        store.close()
        try:
            store = open_store(location)
        except StoreLocked as error:
            remedy = f"Use the running server: --admin URL. Or: {error.remedy}"
            raise StoreLocked(error.message, remedy=remedy) from error
    try:
        yield store
    finally:
        store.close()


def named(location: str | None) -> str:
    """A store's location for people: without the password that a database's URL may hold."""
    from holdfast.store import shown

    return shown(location)


@dataclass(frozen=True, slots=True)
class Shelf:
    """How a command shows one kind of things.

    Args:
        what: What one is called: "Sequence".
        key: The field that names one.
        name: What JSON calls them: "sequences".
        columns: Of the table.
        right: Those that are set to the right.
        look: Gets them from the store at a place.
        ask: Gets them from the admin listener at a URL.
        rows: The table's rows of one.
        ask_one: Gets more of one from an admin listener; None: what the list says is all.
        fold: Puts together in a table what is of no interest one by one; None: nothing is.
    """

    what: str
    key: str
    name: str
    columns: Sequence[str]
    right: Sequence[str]
    look: Callable[[str], Things]
    ask: Callable[[str], Things]
    rows: Callable[[dict[str, Any]], list[list[str]]]
    ask_one: Callable[[str, dict[str, Any]], dict[str, Any]] | None = None
    fold: Callable[[Things], Things] | None = None

    def show(
        self, store: str | None, one: str | None, admin: str | None, *, as_json: bool, every: bool = False
    ) -> None:
        """Show all, or the one with a name that starts with ``one``.

        Args:
            store: A store; None, or the beginning of a name, with ``admin``.
            one: The beginning of a name; None for all.
            admin: The URL of a running server's admin listener, None for a store.
            as_json: Whether to print the listener's JSON rather than a table.
            every: Whether the table has a row for each.

        Raises:
            ConfigurationError: None matches, or several do.
            StoreError: The store does not exist.
        """
        admin, (location, one) = place_and_rest((store, one), admin)
        if location is None:
            assert admin is not None
            things, place = self.ask(admin), admin
        else:
            things, place = self.look(location), named(location)
        if one is not None:
            found = find_by_beginning(things, self.key, one, self.what, place)
            if admin is not None and self.ask_one is not None:
                found = self.ask_one(admin, found)
            click.echo(json.dumps(found, indent=2)) if as_json else print_one(found)
        elif as_json:
            click.echo(json.dumps({self.name: things}, indent=2))
        elif things:
            if self.fold is not None and not every:
                things = self.fold(things)
            print_table(self.columns, [row for thing in things for row in self.rows(thing)], right=self.right)
        else:
            click.echo(f"There are no {self.what}s in {place}.")
