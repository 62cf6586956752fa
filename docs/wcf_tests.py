"""The table of ``reference/interop.md``: the tests with Microsoft's WCF client, and their suites.

The conditions are defined here. The contracts, the versions and the suite come from the tests' source, so that the
table matches them. A test of these files without a condition here is an error, and so is a condition without a test.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests" / "interop"

CONDITIONS: dict[str, dict[str, str]] = {
    "test_wcf_live_grid": {
        "test_every_message_of_every_client_arrives_once_and_in_order": "clean",
        "test_with_a_fifth_of_requests_and_of_answers_lost_no_message_is_lost": "20 % of requests and of answers lost",
        "test_every_request_that_is_served_twice_is_handled_once": "every request served twice",
        "test_operations_of_1_and_8_and_25_s_are_called_once_and_answered": "operations that take 1, 8 and 25 s",
        "test_no_client_notices_that_the_service_is_killed": "the service killed twice (kill -9)",
        "test_clients_that_abort_leave_no_open_sequence": "the client aborts its session",
        "test_void_operations_and_typed_faults_and_unknown_actions_reach_every_client": (
            "orders: a void operation, a typed fault, unknown actions"
        ),
        "test_through_a_broker_every_message_arrives_once_and_in_order": "broker: clean",
        "test_no_client_notices_that_the_broker_is_killed": "broker: killed twice (kill -9)",
        "test_no_client_notices_a_service_behind_the_broker_killed_or_away_40_s": (
            "broker: the service killed twice, then unavailable for 40 s"
        ),
        "test_through_a_broker_clients_that_abort_leave_no_open_sequence": "broker: the client aborts its session",
        "test_the_same_answers_reach_every_client_through_a_broker": (
            "broker: orders: a void operation, a typed fault, unknown actions"
        ),
    },
    "test_wcf_live": {
        "test_one_way_messages_and_calls_of_one_session_arrive_once_and_in_order": "clean",
        "test_with_a_fifth_of_requests_and_of_answers_lost_nothing_is_lost_or_doubled": (
            "20 % of requests and of answers lost"
        ),
        "test_every_request_served_twice_is_handled_once": "every request served twice",
        "test_an_operation_that_returns_nothing_and_a_typed_fault_reach_the_client": (
            "orders: a void operation, a typed fault"
        ),
        "test_an_operation_that_nobody_handles_is_refused_and_the_session_continues": "orders: unknown actions",
        "test_a_handler_that_returns_a_text_makes_no_request_of_a_one_way_operation": (
            "orders: a handler of a one-way operation that returns a text"
        ),
        "test_the_bindings_of_the_guide_do_what_it_says": "WSHttpBinding and WS2007HttpBinding of the guide",
        "test_orders_through_a_broker_are_answered_as_without_one": (
            "broker: orders, forwarded in any version, and in RM 1.0, WS-Addressing 2004/08 and SOAP 1.1"
        ),
        "test_a_client_that_aborts_leaves_no_open_sequence": "the client aborts its session",
        "test_a_two_way_client_that_was_killed_leaves_no_open_sequence": "the client killed",
        "test_a_two_way_client_that_only_waits_keeps_its_session": "the client waits longer than its keep-alive time",
    },
    "test_wcf_live_outages": {
        "test_a_service_behind_a_broker_that_is_away_for_40_s_is_unseen": (
            "broker: the service unavailable for 40 s, six clients"
        ),
        "test_a_call_of_a_service_that_is_away_ends_before_the_client_does_and_is_not_executed_later": (
            "broker: the service unavailable for longer than the client waits"
        ),
        "test_a_restart_of_a_wcf_service_costs_its_clients_behind_a_broker_no_session": (
            "broker: a scripted WCF service restarted, with exactly-once and at-least-once"
        ),
        "test_a_slow_operation_behind_a_broker_is_called_once_and_answered": (
            "broker: operations that take 1, 8 and 25 s"
        ),
    },
    "test_wcf_sessions": {
        "test_each_session_of_the_client_is_one_at_the_service_and_a_slow_call_holds_up_no_other": (
            "broker: eight sessions at once, one with a slow call"
        ),
    },
    "test_wcf_live_username": {
        "test_a_client_with_a_user_name_has_its_session": "a user name",
        "test_a_client_with_one_way_operations_only_sends_with_a_user_name": "a user name",
        "test_a_client_with_a_wrong_password_reads_that_it_is_refused": "a user name with a wrong password",
        "test_a_client_renews_its_token_and_keeps_its_session": "a user name, the token renewed several times",
        "test_with_a_fifth_of_requests_and_of_answers_lost_no_secured_message_is_lost": (
            "a user name, 20 % of requests and of answers lost"
        ),
        "test_no_client_with_a_user_name_notices_that_the_service_is_killed": (
            "a user name, the service killed twice (kill -9)"
        ),
        "test_through_a_broker_a_client_with_a_user_name_has_its_session": "broker: a user name",
    },
    "test_wcf_live_tls": {
        "test_over_https_the_client_has_its_session": "https",
        "test_a_client_with_a_user_name_in_its_messages_reads_that_this_is_not_supported": (
            "a user name, and a service that demands none"
        ),
        "test_a_client_that_speaks_http_to_a_port_for_https_reads_what_to_change": "http at a port for https",
        "test_a_client_without_the_demanded_certificate_is_refused_and_logged": "a demanded certificate missing",
    },
}
"""File -> test -> the condition that it puts the client in."""

ONE_WAY, CALLS = {"notify", "submit"}, {"echo", "cancel", "price"}
"""The operations of the client's contracts."""
DEFAULT = "rm10-wsa2005-soap12"
"""The client's versions without options."""
_VERSIONS = {"10": DEFAULT, "ws": DEFAULT, "11": "rm11-wsa2005-soap12", "ws2007": "rm11-wsa2005-soap12"}
"""The client's versions if only the version of WS-ReliableMessaging, or only the binding, is given."""


def combinations() -> dict[str, str]:
    """Return the titles of the client's versions by their ids in the tests."""
    (listed,) = (
        node.value
        for node in ast.parse((TESTS / "wcf" / "wire.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "COMBINATIONS"
    )
    assert isinstance(listed, ast.Tuple)
    profiles = [[ast.literal_eval(one) for one in call.args] for call in listed.elts if isinstance(call, ast.Call)]
    return {
        f"rm{rm}-wsa{addressing[:4]}-soap{soap}".replace(".", ""): f"RM {rm}, {addressing}, SOAP {soap}"
        for rm, addressing, soap in profiles
    }


class Tests:
    """The tests of one file, from its source."""

    def __init__(self, name: str) -> None:
        tree = ast.parse((TESTS / f"{name}.py").read_text(encoding="utf-8"))
        self._named: dict[str, ast.AST] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._named[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._named[node.targets[0].id] = node.value
        self.names = [name for name in self._named if name.startswith("test_")]
        self._is_nightly = "nightly" in ast.unparse(self._named["pytestmark"])

    def _reached(self, name: str) -> dict[str, ast.AST]:
        """Return the test, its fixtures, and all other functions of the file that they name."""
        found: dict[str, ast.AST] = {}
        left = [name]
        while left:
            if (one := left.pop()) in self._named and one not in found:
                found[one] = node = self._named[one]
                left += [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
                left += [part.arg for part in ast.walk(node) if isinstance(part, ast.arg)]
        return found

    def contracts(self, name: str) -> list[str]:
        """Return the kinds of the client's session: only one-way operations, only calls, or both."""
        found = set()
        for script in itertools.chain.from_iterable(map(_scripts, self._reached(name).values())):
            commands = set(re.findall(r"\w+", script))
            kinds = bool(commands & ONE_WAY), bool(commands & CALLS)
            found.add({(True, False): "one-way", (False, True): "two-way", (True, True): "mixed"}.get(kinds, ""))
        return [kind for kind in ("one-way", "two-way", "mixed") if kind in found] or ["no session"]

    def suites(self, name: str) -> dict[str, str]:
        """Return the suite in which the test runs, by version."""
        node = self._named[name]
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        marks = " ".join(ast.unparse(one) for one in node.decorator_list)
        usual = "nightly" if self._is_nightly or "mark.nightly" in marks else "default"
        if "each_version" in marks:
            chosen = set(_VERSIONS.values())
            return {one: usual if one in chosen else "nightly" for one in combinations()}
        if (said := re.search(r"parametrize\('(?:rm|binding)', (\[.*?\])\)", marks)) is not None:
            return {_VERSIONS[one]: usual for one in ast.literal_eval(said[1])}
        is_of_all = "every_combination" in marks or any(
            isinstance(part, ast.Name) and part.id == "cells"
            for one in self._reached(name).values()
            for part in ast.walk(one)
        )
        return dict.fromkeys(combinations() if is_of_all else [DEFAULT], usual)


def _scripts(node: ast.AST) -> Iterator[str]:
    """Yield the scripts for the client in a piece of source."""
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr):
            text = "".join(str(one.value) for one in part.values if isinstance(one, ast.Constant))
        else:
            text = part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else ""
        if re.match(r"(open|notify|echo)\b.*; ", text):
            yield text


Row = tuple[str, list[str], dict[str, str]]
"""A condition, the contracts, and the suite of each version."""


def rows() -> list[Row]:
    """Return the rows of the table, without those that another row covers."""
    found: list[Row] = []
    for file, conditions in CONDITIONS.items():
        tests = Tests(file)
        if set(tests.names) != set(conditions):
            raise ValueError(f"{file} and its conditions differ: {set(tests.names) ^ set(conditions)}")
        for name, condition in conditions.items():
            row = condition, tests.contracts(name), tests.suites(name)
            if not any(_says_all_of(other, row) for other in found):
                found.append(row)
    return found


def _says_all_of(other: Row, row: Row) -> bool:
    has_contracts = other[0] == row[0] and set(other[1]) >= set(row[1])
    # A nightly run includes the default suite.
    return has_contracts and all(other[2].get(version) in ("default", suite) for version, suite in row[2].items())


def table() -> str:
    """Return the table as Markdown."""
    titles = combinations()
    head = ["condition", "sessions", *titles.values()]
    lines = [head, ["---"] * len(head)]
    # The conditions of a broker come after those of a service.
    for condition, contracts, suites in sorted(rows(), key=lambda row: row[0].startswith("broker")):
        lines.append([condition, ", ".join(contracts), *(suites.get(version, "—") for version in titles)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
