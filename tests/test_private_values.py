"""What of a plan stays on its host, and what a server repeats of it."""

from __future__ import annotations

from typing import Any

import pytest

from asyncli.model.plan import Plan, plan_document
from asyncli.model.private_values import given_again, missing_values, private_values, recorded_document, secret_texts
from asyncli.model.quotation import Quotation

URL = "tcp://127.0.0.1:6379"


@pytest.mark.parametrize(
    ("values", "recorded"),
    [
        ({"headers": ("Authorization: Bearer tiger-4711", "X-A: b")}, ["Authorization: ***", "X-A: ***"]),
        ({"urls": ("wss://h/chat?token=tiger-4711", "wss://h/other")}, ["wss://h/chat?***", "wss://h/other"]),
        ({"mqtt_login": "me:tiger-4711"}, "***"),
        ({"send": r"AUTH tiger-4711\r\n"}, "***"),
        ({"server_metrics": ("http://me:tiger-4711@h/metrics?key=tiger-4711",)}, ["http://***@h/metrics?***"]),
        ({"server_metrics": ("mqtts://me:tiger-4711@h:8883/",)}, ["mqtts://***@h:8883/"]),
        ({"ws_message": '{"token": "tiger-4711"}'}, "***"),
    ],
)
def test_a_recorded_plan_has_no_secret_and_asks_for_it(values: dict[str, Any], recorded: object) -> None:
    document = plan_document(Plan(**{"urls": (URL,), **values}))
    kept = recorded_document(document)
    (field,) = values
    assert kept[field] == recorded
    assert "tiger" not in str(kept)
    assert private_values(document) == values
    assert recorded_document(kept) == kept
    assert missing_values(kept) == [field]
    assert given_again(kept, values) == values
    with pytest.raises(ValueError, match="again"):
        given_again(kept, {})


def test_a_plan_without_secrets_is_recorded_as_it_is() -> None:
    document = plan_document(Plan(urls=(URL,)))
    assert (private_values(document), missing_values(recorded_document(document))) == ({}, [])


def test_what_is_given_again_is_of_the_same_run() -> None:
    kept = recorded_document(plan_document(Plan(urls=("http://h/a?b=c",), headers=("X-A: 1",))))
    assert given_again(kept, {"headers": ("X-A: 2",), "urls": ("http://h/a?d",)}) == {"headers": ("X-A: 2",), "urls": ("http://h/a?d",)}
    for wrong in ({"headers": ("X-B: 1",), "urls": ("http://h/a?b",)}, {"headers": ("X-A: 1",), "urls": ("http://other/a?b",)}):
        with pytest.raises(ValueError, match="started with"):
            given_again(kept, wrong)


@pytest.mark.parametrize("field", ["agent_token_file", "client_cert", "client_key"])
def test_a_file_that_a_recorded_plan_names_is_named_again(field: str) -> None:
    kept = recorded_document(plan_document(Plan(urls=(URL,), **{field: "/etc/passwd"})))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="/etc/passwd"):
        given_again(kept, {})
    assert given_again(kept, {field: "mine"}) == {field: "mine"}


@pytest.mark.parametrize(
    ("values", "text", "quoted"),
    [
        ({"send": r"AUTH tiger-4711\r\n"}, r"b'-ERR no user tiger-4711\r\n'", r"b'-ERR no user ***\r\n'"),
        ({"send": r"AUTH tiger-4711\r\n"}, "b'-ERR no user tiger-4", "b'-ERR no user ***"),
        ({"send": r"PING\r\n"}, r"b'+PONG\r\n'", r"b'+PONG\r\n'"),
        ({"headers": ("Authorization: Bearer abcdefghi",)}, "token Bearer abcdefghi is unknown", "token *** *** is unknown"),
        ({"urls": ("ws://h/a?token=abcdefghi",)}, "bad token: bcdefghi", "bad token: ***"),
        ({"mqtt_login": "me:abcdefghi"}, "bad password abcdefghi of me", "bad password *** of me"),
        ({}, "bye", "bye"),
    ],
)
def test_a_server_repeats_no_secret(values: dict[str, Any], text: str, quoted: str) -> None:
    quotation = Quotation(secret_texts(plan_document(Plan(**{"urls": (URL,), **values}))))
    assert quotation(text) == quoted
    assert quotation.counts({text: 1, f"{text} ": 2}) == {quoted: 1, f"{quoted} ": 2}


LOGIN, BASIC = "me:s3cret/Pa$$ü", "bWU6czNjcmV0L1BhJCTDvA=="


@pytest.mark.parametrize(
    ("secret", "repeated"),
    [
        (LOGIN, LOGIN), (LOGIN, LOGIN.upper()), (LOGIN, "s3cret/Pa$$ü"), (LOGIN, "ME%3AS3CRET%2FPA%24%24%C3%BC"), (LOGIN, "s3cret%2fPa%24%24%c3%bc"),
        (LOGIN, BASIC), (LOGIN, BASIC.rstrip("=")), (LOGIN, LOGIN.encode().hex()), (LOGIN, LOGIN.encode().hex().upper()),
        (LOGIN, LOGIN.encode().decode("latin-1")), (LOGIN, repr(LOGIN.encode())[2:-1]),
        (f"Basic {BASIC}", LOGIN), (f"Basic {BASIC}", "s3cret/Pa$$ü"), (f"Basic {BASIC}", BASIC.upper()),
        (r"AUTH tiger\x2d4711\r\n", "tiger-4711"), ("a!b@c#d$", "a!b@c#d$"), ("tiger-4711", "dGlnZXItNDcxMQ"), ("tig1", "TIG1"),
    ],
)  # fmt: skip
def test_a_secret_is_hidden_in_each_form_that_a_server_may_repeat(secret: str, repeated: str) -> None:
    assert Quotation([secret])(f"<{repeated}>") == "<***>"


def test_a_long_text_costs_little() -> None:
    quotation = Quotation([" ".join(f"word{number:06d}" for number in range(20_000))])
    assert quotation("word019999") == "***"
