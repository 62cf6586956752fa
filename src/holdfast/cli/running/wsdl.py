"""``holdfast wsdl``: a WSDL in words, or as a typed module."""

from __future__ import annotations

import json
from pathlib import Path

import click

from holdfast.cli.program import peer_options, to_peers, wrong_usage
from holdfast.cli.running.send import parse_headers
from holdfast.client.command_options import no_effect
from holdfast.exceptions import ConfigurationError


@click.command()
@click.argument("location", metavar="URL|FILE")
@click.option("--port", metavar="NAME", help="Show the operations of this wsdl:port.  [default: the reliable one]")
@click.option("--stubs", metavar="FILE", help="Write a typed Python module for the operations.")
@click.option(
    "--allow-import", "allow", multiple=True, metavar="URL", help="Also load documents that begin with this URL."
)
@click.option(
    "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="HTTP header for the host of the WSDL."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@peer_options
def wsdl(
    location: str,
    port: str | None,
    stubs: str | None,
    allow: tuple[str, ...],
    headers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the ports of a WSDL, what their policies require, and the operations with their types.

    \b
    holdfast wsdl 'https://partner.example/Orders.svc?singleWsdl'
    holdfast wsdl orders.wsdl --stubs orders_client.py

    Documents that the WSDL imports are loaded from its own host or directory only. The module of --stubs has a class
    with a method for each operation, and a TypedDict for each structure, for editors and type checkers.
    """
    from holdfast.endpoint.source.http_settings import SourceHTTP
    from holdfast.endpoint.source.operation_calls import load_contract
    from holdfast.endpoint.source.wsdl import documents_of

    peers = to_peers()
    with wrong_usage():
        http = SourceHTTP(headers=parse_headers(headers), **peers)
    contract = load_contract(documents_of(location, http, allow), port)
    if stubs is not None:
        no_effect("with --stubs", "as_json")
        from holdfast.wsdl.stubs import WRITTEN_BY, typed_module

        file = Path(stubs)
        try:
            if file.exists() and (before := file.read_bytes()) and WRITTEN_BY.encode() not in before:
                raise ConfigurationError(
                    f"{stubs} exists, and --stubs did not write it, so it stays as it is.",
                    remedy="Name another file, or delete that one first.",
                )
            file.write_text(typed_module(contract), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"Cannot write {stubs}: {error.strerror}.", remedy="Check the path.") from error
        click.echo(f"{len(contract.operations)} operations written to {stubs}", err=True)
        for name, reason in contract.unusable.items():
            click.echo(f"{name} is not usable, because {reason}", err=True)
        return
    from holdfast.wsdl.words import facts, in_words

    click.echo(json.dumps(facts(contract), ensure_ascii=False) if as_json else in_words(contract), nl=as_json)
