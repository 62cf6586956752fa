"""Microsoft's own WCF client, as a program: what each command of a script came to.

The environment variable WCF_CLIENT is the program's path. It takes a script (``open; echo 1..5; close``) and prints a
line of JSON for each command.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

PROGRAM = os.environ.get("WCF_CLIENT", "")


class LiveWCFClient:
    """One run of the client.

    Args:
        url: The service.
        options: Of the command line, as ``rm="11"``; an empty value is a flag.
    """

    def __init__(self, url: str, **options: str) -> None:
        self._arguments = ["--url", url]
        for name, value in options.items():
            self._arguments += [f"--{name.replace('_', '-')}", *([value] if value else [])]
        self.said: list[dict[str, Any]] = []

    async def run(self, script: str) -> list[dict[str, Any]]:
        """What it says of each command of the script, but the last line, which counts.

        Raises:
            AssertionError: it ended without having done the script.
        """
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *self._arguments,
            "--do",
            script,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        lines = [json.loads(line) for line in out.splitlines()]
        assert lines and lines[-1].get("done"), (script, out, errors.decode(errors="replace")[-2000:])
        self.said = lines[:-1]
        return self.said

    @property
    def failed(self) -> list[dict[str, Any]]:
        """What it says of commands that failed."""
        return [line for line in self.said if "failed" in line]
