"""What a server reports about a commit is recognised, whatever its language. Covers store/sql/postgresql_batch.py.

``test_sql`` cancels the wait of a commit at a real server.
"""

from __future__ import annotations

import pytest
from psycopg.errors import Diagnostic
from psycopg.pq import DiagnosticField

from holdfast.store.sql.postgresql_batch import is_unconfirmed


def notice(function: str, words: str) -> Diagnostic:
    fields = {
        DiagnosticField.SOURCE_FUNCTION: function.encode(),
        DiagnosticField.SQLSTATE: b"01000",
        DiagnosticField.MESSAGE_PRIMARY: words.encode(),
    }
    return Diagnostic(fields)


@pytest.mark.parametrize(
    "words",
    [
        "canceling wait for synchronous replication due to user request",
        "storniere Warten auf synchrone Replikation wegen Benutzeraufforderung",
        "annulation de l'attente pour la réplication synchrone à la demande de l'utilisateur",
    ],
)
def test_a_cancelled_wait_for_the_standby_is_recognised_in_any_language(words: str) -> None:
    assert is_unconfirmed(notice("SyncRepWaitForLSN", words))


def test_other_notices_say_nothing_about_a_commit() -> None:
    assert not is_unconfirmed(notice("DefineRelation", "relation exists already, skipping"))
    assert not is_unconfirmed(Diagnostic({}))
