"""A server ends in a bounded time after SIGTERM, whatever its store does."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, sys, threading
from holdfast import Destination
from holdfast.endpoint import serve
from holdfast.store.memory import MemoryStore

serve.LONGEST_END = 0.3
answers = threading.Event()
answers.set()

class Hanging(MemoryStore):
    waits = True

    def commit(self, batch):
        answers.wait()
        super().commit(batch)

store = Hanging()
service = serve.Service(Destination(store, partitions=1), serve.Listeners(port=0))

def ready():
    answers.clear()
    service.app.engine._thread.commit(service.app.engine.protocol.take_batch(), None)
    service.app.engine._committing = True
    print("ready", flush=True)

asyncio.run(service.run(on_ready=ready))
"""


def test_a_server_whose_commit_hangs_ends_in_bounded_time_after_sigterm(tmp_path: Path) -> None:
    script = tmp_path / "hanging.py"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == b"ready\n", process.stderr.read().decode()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 1
            assert b"stopped without the store" in process.stderr.read()
        finally:
            process.kill()
