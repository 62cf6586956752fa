"""A node without workers, as a program: the agent, and a supervisor that reports each worker as ended at once.

Arguments: location, name, partitions, lease. Prints what the agent says and logs as JSON lines; to the former it adds
``clock_offset``, with which a worker would start then. Passes lines of its input to the agent; for ``trust`` it prints
for how long each partition is trusted, and ``want`` with a partition and bytes is what its worker would note. Its clock
is CLOCK_OFFSET seconds off.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any

from holdfast.cluster.agent import AgentSettings, run_agent
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.trust import Trust, trust_clock
from holdfast.store import is_kafka


def tell(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def supervise(link: socket.socket, trust: Trust) -> None:
    running: set[str] = set()
    with link.makefile("rb") as lines:
        for line in lines:
            told = json.loads(line)
            tell({**told, "clock_offset": trust.clock_offset})
            if "view" in told:
                view = told["view"]
                for partition in view["preparing"]:  # its worker has read its log, which no process owns
                    trust.of(int(partition)).may_claim(1, is_free=True)
                stopped = running - view["mine"].keys() - view["preparing"].keys()
                running = {*view["mine"], *view["preparing"]}
                if stopped:
                    link.sendall(json.dumps({"stopped": [int(one) for one in stopped]}).encode() + b"\n")


def follow(link: socket.socket, trust: Trust, partitions: int) -> None:
    for line in sys.stdin:
        if line == "trust\n":
            now = trust_clock()
            until = [trust.until(partition) - now for partition in range(partitions)]
            tell({"trust": until})
        elif line.startswith("want "):
            partition, wanted = map(int, line.split()[1:])
            trust.of(partition).want(wanted)
        elif line == "close\n":
            link.shutdown(socket.SHUT_RDWR)
        else:
            link.sendall(line.encode())


if __name__ == "__main__":
    if offset := float(os.environ.get("CLOCK_OFFSET", "0")):
        true_time = time.time
        time.time = lambda: true_time() + offset
    location, name, partitions, lease = sys.argv[1:]
    trust = Trust(int(partitions))
    ours, theirs = socket.socketpair()
    supervisor = threading.Thread(target=supervise, args=(ours, trust), daemon=True)
    supervisor.start()
    threading.Thread(target=follow, args=(ours, trust, int(partitions)), daemon=True).start()
    settings = AgentSettings(location, name, f"http://{name}/", int(partitions), LeasePolicy(float(lease)))
    run = run_agent
    if is_kafka(location):
        from holdfast.cluster.group.agent import run_group_agent as run
    code = run(settings, theirs, trust, lambda level, event, **fields: tell({"event": event, "level": level, **fields}))
    theirs.close()
    supervisor.join()  # it has printed all that the agent said
    tell({"trust": [trust.until(partition) for partition in range(int(partitions))]})
    sys.exit(code)
