"""Shelf: one kind of things that a store or a running server has: all of them listed, or one of them shown whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.tables import admin_and_rest, find_by_beginning, print_one, print_table

if TYPE_CHECKING:
    from holdfast.client.admin_client import AdminClient

Things = list[dict[str, Any]]
"""The objects of one kind that an admin interface returns, as a list."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """How a command shows one kind of object.

    Args:
        what: The noun for one object: "Sequence".
        key: The field with its name.
        name: The key of the list in JSON: "sequences".
        columns: Columns of the table.
        right: Right-aligned columns.
        ask: Requests the objects from an admin interface.
        rows: Returns the table rows of one object.
        ask_one: Requests the details of one object; None if the list contains them.
        fold: Combines objects that need no separate rows; None: every object has its rows.
        shorten: Leaves out what is empty in the details of one object; None: all of them are shown.
    """

    what: str
    key: str
    name: str
    columns: Sequence[str]
    right: Sequence[str]
    ask: Callable[[AdminClient], Things]
    rows: Callable[[dict[str, Any]], list[list[str]]]
    ask_one: Callable[[AdminClient, dict[str, Any]], dict[str, Any]] | None = None
    fold: Callable[[Things], Things] | None = None
    shorten: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    def show(
        self, store: str | None, one: str | None, admin: str | None, *, as_json: bool, every: bool = False
    ) -> None:
        """Show all, or the one with a name that starts with ``one``.

        Args:
            store: A store; None, or the beginning of a name, with ``admin``.
            one: The beginning of a name; None for all.
            admin: The URL of a running server's admin listener, None for a store.
            as_json: Whether to print the listener's JSON rather than a table.
            every: Whether the table has a row for each, and the details of one are complete.

        Raises:
            ConfigurationError: None matches, or several do.
            StoreError: The store does not exist.
        """
        client, (one,) = admin_and_rest((store, one), admin)
        things = self.ask(client)
        if one is not None:
            found = find_by_beginning(things, self.key, one, self.what, client.place)
            if self.ask_one is not None:
                found = self.ask_one(client, found)
            if as_json:
                click.echo(json.dumps(found, indent=2))
            else:
                print_one(found if self.shorten is None or every else self.shorten(found))
        elif as_json:
            click.echo(json.dumps({self.name: things}, indent=2))
        elif things:
            if self.fold is not None and not every:
                things = self.fold(things)
            print_table(self.columns, [row for thing in things for row in self.rows(thing)], right=self.right)
        else:
            click.echo(f"There are no {self.what}s in {client.place}.")
