"""The token of an admin listener: where it, and who asks it, take it from.

Loads next to nothing: every process of Spark that reads a queue imports it.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.exceptions import ConfigurationError
from holdfast.settings import checked_token

TOKEN_VARIABLE = "HOLDFAST_ADMIN_TOKEN"
"""The environment variable that the admin listener's token is taken from, and that its clients take it from."""


def read_token(file: str | None = None) -> str | None:
    """Return the token in a file, else in the environment variable HOLDFAST_ADMIN_TOKEN; None without either.

    Raises:
        ConfigurationError: it cannot be read, is empty, or is nothing that a header could carry.
    """
    if file is not None:
        place = file
        try:
            text = Path(file).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"the token cannot be read from {file}: {getattr(error, 'strerror', None) or error}",
                remedy="The file must contain the token and nothing else.",
            ) from error
    elif TOKEN_VARIABLE in os.environ:
        place, text = f"the environment variable {TOKEN_VARIABLE}", os.environ[TOKEN_VARIABLE]
    else:
        return None
    return checked_token(text, place)
