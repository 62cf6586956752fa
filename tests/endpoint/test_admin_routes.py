"""The table of the admin listener's routes: which function a request goes to, and what is said where there is none."""

from __future__ import annotations

import pytest

from holdfast.endpoint.admin_routes import Asked, Refused, Routes


async def first(asked: Asked) -> None: ...


async def second(asked: Asked, name: str) -> None: ...


async def third(asked: Asked, name: str, how: str) -> None: ...


ROUTES = Routes(
    [
        ("GET", "things", first),
        ("GET|DELETE", "things/{name}", second),
        ("POST", "things/{name}/{how:start|stop}", third),
    ]
)


def test_a_path_finds_its_function_and_what_its_names_stand_for() -> None:
    assert ROUTES.find("GET", "/things") == (first, {})
    assert ROUTES.find("DELETE", "/things/urn%3Aa%2Fb") == (second, {"name": "urn:a/b"})
    assert ROUTES.find("POST", "/things/a/stop") == (third, {"name": "a", "how": "stop"})


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
