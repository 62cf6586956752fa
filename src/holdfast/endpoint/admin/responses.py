"""Responses of an admin interface: run a route, and turn its result or its error into the answer of the exchange."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from holdfast.core.steering import NotSteered
from holdfast.endpoint.admin.routes import UNKNOWN_PATH, Refused, Route
from holdfast.endpoint.json_answers import json_answer
from holdfast.endpoint.logs import log
from holdfast.exceptions import StoreError
from holdfast.http.exchange import Exchange


async def respond(route: Route, exchange: Exchange, query: str, names: dict[str, str]) -> int:
    """Run the route and respond.

    Args:
        query: The parameters behind the path.

    Returns:
        The status.
    """
    try:
        answer = await route.function(route.read(exchange, query), **names)
    except Refused as refused:
        refuse(exchange, refused)
        return refused.status
    except NotSteered as error:
        json_answer(exchange, 409, {"error": error.message, "remedy": error.remedy})
        return 409
    except StoreError as error:
        json_answer(exchange, 503, {"error": error.message, "remedy": error.remedy})
        return 503
    except Exception as error:
        return report_bug(exchange, error)
    if route.answer is None:
        exchange.respond(204)
        return 204
    if not isinstance(route.answer, str):
        json_answer(exchange, 200, answer)
    return 200


def refuse(exchange: Exchange, refused: Refused) -> None:
    told = {"error": refused.message, "remedy": refused.remedy, **refused.detail}
    json_answer(exchange, refused.status, told, refused.headers)


def report_bug(exchange: Exchange, error: Exception) -> int:
    """Log an unexpected error, and answer with it; return the status."""
    log.error("admin.request_failed", target=exchange.request.target, exc_info=error)
    json_answer(exchange, 500, {"error": repr(error), "remedy": "This is a bug in Holdfast. The log has the details."})
    return 500


def split_target(target: str) -> SplitResult:
    """Return the path and the query of a request.

    Raises:
        Refused: 400 if the target cannot be read.
    """
    try:
        return urlsplit(target)
    except ValueError as error:
        raise Refused(400, f"the path cannot be read: {error}", UNKNOWN_PATH) from None
