"""``holdfast`` with an agent that a test scripts: it passes the test's lines to the supervisor, and those of the
supervisor to the test. The test listens at the Unix socket in SCRIPT."""

from __future__ import annotations

import json
import math
import os
import selectors
import socket

from holdfast.broker.config import BrokerConfig
from holdfast.cli.main import main
from holdfast.cli.running import workers
from holdfast.cluster.trust import Trust


def run_agent(
    config: BrokerConfig, node: str, url: str, trust: Trust, link: socket.socket, *, restored: bool = False
) -> None:
    """Do as the test says. What a view claims is trusted for ever, and nothing else is."""
    assert config.cluster is not None
    with socket.socket(socket.AF_UNIX) as script, selectors.DefaultSelector() as selector:
        script.connect(os.environ["SCRIPT"])
        script.sendall(json.dumps({"node": node, "url": url}).encode() + b"\n")
        for one in (script, link):
            selector.register(one, selectors.EVENT_READ)
        received, mine, is_ending = b"", set[str](), False
        while not is_ending or mine:
            ready = {key.fileobj for key, _ in selector.select()}
            if link in ready:
                if not (data := link.recv(65536)):
                    return
                script.sendall(data)
                is_ending = is_ending or b'"end"' in data
                mine -= {str(one) for line in data.splitlines() for one in json.loads(line).get("stopped", ())}
            if script in ready:
                if not (data := script.recv(65536)):
                    return
                received += data
                *lines, received = received.split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    if "view" in message:
                        mine = {*message["view"]["mine"]}
                        for number in range(config.cluster.partitions):
                            trust.set(number, math.inf if str(number) in message["view"]["mine"] else 0.0)
                    if "revoke" in message:
                        trust.revoke()
                    else:
                        link.sendall(line + b"\n")


if __name__ == "__main__":
    workers.run_agent = run_agent
    main()
