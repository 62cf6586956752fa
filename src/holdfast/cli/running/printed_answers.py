"""The answers that ``holdfast send`` prints: replies to standard output, faults to standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.running.operation_values import OperationValues
from holdfast.endpoint.envelopes.attachments import inlined_body, inlined_headers
from holdfast.exceptions import PeerFault

if TYPE_CHECKING:
    from holdfast.endpoint.source.replies import Reply


class PrintedAnswers:
    """The answers of one command, printed as they come.

    The fault that answers the only message is not printed: it is the error of the command.

    Attributes:
        values: The operation that the messages are values for; None if they are XML.
        begun: Number of messages that were given to the source, to store them.
    """

    def __init__(self) -> None:
        self.values: OperationValues | None = None
        self.begun = 0
        self._replies = 0
        self._faults: list[PeerFault] = []
        self._unprinted: list[PeerFault] = []

    def reply(self, reply: Reply) -> None:
        """Print a reply, and confirm it."""
        if self.values is None:
            click.echo(reply.body_bytes)
        else:
            body = inlined_body(reply.body_bytes, reply.attachments)
            click.echo(self.values.reply(body, inlined_headers(reply.header_bytes, reply.attachments)))
        self._replies += 1
        reply.done()

    def fault(self, name: str, fault: PeerFault) -> None:
        declared = "" if self.values is None else self.values.fault(fault)
        told = PeerFault(
            f"the service answered {name} with a fault: {fault.message}{declared}",
            code=fault.code,
            detail=fault.detail,
            remedy=fault.remedy,
        )
        self._faults.append(told)
        self._unprinted.append(told)
        if self.begun != 1:
            self._print_faults()

    def _print_faults(self) -> None:
        for fault in self._unprinted:
            click.echo(fault.message, err=True)
        self._unprinted.clear()

    def raise_faults(self) -> None:
        """Raise an error if the service answered messages with faults."""
        if self._unprinted and self.begun <= 1:
            raise self._unprinted[0]
        self._print_faults()
        if self._faults:
            count = len(self._faults)
            raise PeerFault(
                f"the service answered {count:,} of {count + self._replies:,} requests with faults",
                code=self._faults[0].code,
                remedy="The lines above name them. The replies to the others are printed.",
            )
