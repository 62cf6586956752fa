"""AgentLink: a node's supervisor and the agent, the process that keeps the node's lease, talk through it.

One JSON object a line, in both directions. The agent sends a view at each change, or why it cannot be in the cluster.
The supervisor sends which workers have stopped, so that other nodes may have them, and that the node ends. If either
process ends, the other finds the link closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from holdfast.cluster.trust import Trust
from holdfast.cluster.view import View
from holdfast.exceptions import HoldfastError, clause

MOST_BYTES: Final = 1024 * 1024
"""Bytes of one line: a view with the most partitions, the longest URLs and the longest reasons."""
LONGEST_REASON: Final = 1000
"""Characters of the reason why a worker could not start, with its remedy."""


class AgentEnded(Exception):
    """No further view will come: this host is not a node of the cluster, or no longer."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy


class AgentLink:
    """The supervisor's end.

    Args:
        trust: Until when each worker may act, which the agent writes.
    """

    def __init__(self, pid: int, link: socket.socket, trust: Trust) -> None:
        self.pid = pid
        self._link = link
        self.trust = trust
        self._received = b""

    @classmethod
    def start(cls, run: Callable[[socket.socket], None], trust: Trust) -> AgentLink:
        """Fork the agent.

        Args:
            run: What the agent does with its end, until it returns. It begins with the signals of a terminal ignored:
                it ends with the supervisor.
            trust: Until when each worker may act.
        """
        ours, theirs = socket.socketpair()
        # Otherwise both processes would write what is in the buffers.
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            theirs.close()
            return cls(pid, ours, trust)
        code = 1
        try:
            ours.close()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            run(theirs)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there is something new."""
        return self._link.fileno()

    def read(self) -> list[View]:
        """Return the views that have arrived, in their order. Never waits.

        Each counts: the agent waits for the end of a worker that was in one of them and is not in a later one.

        Raises:
            AgentEnded: No further view will come.
        """
        is_over = False
        while not is_over:
            try:
                data = self._link.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            self._received += data
            # Read to its end first: the last lines say why the agent ended.
            is_over = not data or len(self._received) > MOST_BYTES
        *lines, self._received = self._received.split(b"\n")
        messages: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for message in messages:
            if "refused" in message:
                raise AgentEnded(message["refused"]["problem"], message["refused"]["remedy"])
        if is_over:
            raise AgentEnded("the process that keeps the node's lease has ended", "Start the broker again.")
        return [View.from_json(message["view"]) for message in messages if "view" in message]

    def stopped(self, number: int) -> None:
        """Report that no process serves a worker any longer, so that other nodes may."""
        self._send({"stopped": [number]})

    def failed(self, number: int, why: str) -> None:
        """Report that a worker cannot be started here, so that another node may."""
        self._send({"failed": {number: why}})

    def report(self, serving: Sequence[int], unreachable: Mapping[str, str], tables: Mapping[str, str]) -> None:
        """Report the workers that accept requests now, the nodes that cannot be reached (node -> why), and the digests
        of the tables of the configuration."""
        self._send({"serving": list(serving), "unreachable": dict(unreachable), "tables": dict(tables)})

    def end(self) -> None:
        """Let the agent leave the cluster when the workers have stopped, and end."""
        self._send({"end": True})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has ended, which the next read shows
            self._link.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Close this process's copy of the link. Each worker does, so that its end shows the supervisor's."""
        self._link.close()


def urls_of_others(view: View) -> dict[int, str]:
    """Return partition -> URL of its node, for the partitions of other nodes."""
    return {
        partition: view.nodes[node]
        for partition, node in view.owners.items()
        if node != view.node and node in view.nodes
    }


def reason_of(error: Exception) -> str:
    """Return what went wrong, and what to do, in one line. If it is too long, the middle of the former is cut."""
    why, remedy = (error.message, error.remedy) if isinstance(error, HoldfastError) else (repr(error), "")
    why, remedy = " ".join(why.split()), " ".join(remedy.split())[: LONGEST_REASON // 2]
    most = LONGEST_REASON - len(remedy) - 2
    if len(why) > most:
        part = (most - 3) // 2
        why = f"{why[:part]} … {why[-part:]}"
    return f"{clause(why)}. {remedy}" if remedy else why
