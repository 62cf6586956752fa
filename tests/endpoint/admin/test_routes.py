"""The table of the admin listener's routes: which function a request goes to, and what is said where there is none."""

from __future__ import annotations

import pytest

from holdfast.endpoint.admin.routes import Asked, Refused, Route, Routes


async def first(asked: Asked) -> None: ...


async def second(asked: Asked, name: str) -> None: ...


async def third(asked: Asked, name: str, how: str) -> None: ...


ROUTES = Routes(
    [
        Route("GET", "things", first, "List them", None),
        Route("GET", "things/{name}", second, "Show one", None),
        Route("DELETE", "things/{name}", second, "Delete one", None),
        Route("POST", "things/{name}/{how:start|stop}", third, "Steer one", None),
    ]
)


def test_a_path_finds_its_function_and_what_its_names_stand_for() -> None:
    for method, path, function, names in (
        ("GET", "/things", first, {}),
        ("DELETE", "/things/urn%3Aa%2Fb", second, {"name": "urn:a/b"}),
        ("POST", "/things/a/stop", third, {"name": "a", "how": "stop"}),
    ):
        route, found = ROUTES.find(method, path)
        assert (route.method, route.function, found) == (method, function, names)


def test_head_finds_what_get_finds() -> None:
    """RFC 9110 section 9.3.2."""
    route, found = ROUTES.find("HEAD", "/things/a")
    assert (route.method, route.function, found) == ("GET", second, {"name": "a"})
    with pytest.raises(Refused) as refused:
        ROUTES.find("HEAD", "/things/a/stop")
    assert refused.value.status == 405


@pytest.mark.parametrize("path", ["/", "/thing", "/things/a/halt", "/things/a/stop/now", "/things%2Fa"])
def test_a_path_that_nothing_is_at_is_404(path: str) -> None:
    with pytest.raises(Refused) as refused:
        ROUTES.find("POST", path)
    assert refused.value.status == 404


def test_another_method_is_405_and_the_answer_names_those_there_are() -> None:
    with pytest.raises(Refused) as refused:
        ROUTES.find("PUT", "/things/a")
    assert refused.value.status == 405
    assert refused.value.headers == ((b"Allow", b"DELETE, GET"),)
