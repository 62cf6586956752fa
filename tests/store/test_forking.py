"""A process that forks after it has opened an embedded store: both processes go on, and both end.

Covers store/rocksdb/forking.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from holdfast.core.records import Batch, Record
from holdfast.store import open_store

def write(store, count=20):
    start = store.load().bounds.get(("q", 0), (0, 0))[1]
    for offset in range(start, start + count):
        record = Record("s", offset + 1, "urn:a", b"x" * (1 << 20), 0.0)
        store.commit(Batch(appends=[("q", 0, offset, record)]))
    store._db.flush()
    return start + count

kind = sys.argv[1]
mine = open_store("parent")
write(mine)
if kind == "closed":
    mine.close()
for generation in range(2):
    child = os.fork()
    if child == 0:
        own = open_store(f"child{generation}")
        write(own)
        own.close()
        sys.exit(0)
    ended = os.waitpid(child, 0)[1]
    print("child", ended, flush=True)
if kind == "closed":
    mine = open_store("parent")
write(mine)
mine.close()
mine = open_store("parent")
print("parent", mine.load().bounds["q", 0])
mine.close()
"""


@pytest.mark.parametrize("kind", ["open", "closed"])
def test_a_forked_process_opens_its_own_store_and_both_processes_end(kind: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", PROGRAM, kind]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "child 0\nchild 0\nparent (0, 40)\n", done.stderr
    assert done.returncode == 0


WITHOUT_PROC = """
import os, sys
from pathlib import Path
from holdfast.exceptions import ConfigurationError
from holdfast.store import open_store
from holdfast.store.rocksdb import forking

forking._TASKS = Path("/absent")
if sys.argv[1] == "opened":
    open_store("parent").close()
child = os.fork()
if child == 0:
    try:
        open_store("child").close()
    except ConfigurationError as error:
        print(error.remedy, flush=True)
        os._exit(1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(("kind", "code", "says"), [("opened", 1, "spawn or forkserver"), ("unopened", 0, "")])
def test_a_system_that_does_not_name_threads_refuses_only_where_there_may_be_some(
    kind: str, code: int, says: str, tmp_path: Path
) -> None:
    """So workers, which fork before any store is open, run everywhere."""
    program = [sys.executable, "-c", WITHOUT_PROC, kind]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, says in done.stdout) == (code, True), done.stderr
