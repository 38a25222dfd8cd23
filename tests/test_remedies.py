"""Remedies for a server's refusal, by the protocol's code."""

from __future__ import annotations

import pytest

from asyncli.findings import protocol_codes
from asyncli.findings.loss_causes import remedy_of_unexplained, words_of
from asyncli.findings.losses import describe_loss, remedy_of_statuses
from asyncli.findings.protocol_codes import (
    code_of_goodbye,
    kind_of_break,
    name_of_reset,
    remedy_of_broken,
    remedy_of_refusals,
    words_of_goodbye,
)
from asyncli.model.protocol_table import SPEAKS_HTTP2, SPEAKS_TLS


@pytest.mark.parametrize(
    ("protocol", "reason", "flag"),
    [
        ("websocket", "HTTP 404 Not Found", "URL"), ("sse", "HTTP 405 Method Not Allowed", "--header"), ("websocket", "HTTP 200 OK: hello", "URL"),
        ("sse", "HTTP 400 Bad Request: <html>", "--client-cert"),
        ("websocket", "HTTP 401 Unauthorized", "credentials"), ("websocket", "HTTP 403 Forbidden: x", "Origin"),
        ("websocket", "HTTP 429 Too Many Requests", "load"), ("stream", "HTTP 503 Service Unavailable", "backend"), ("sse", "HTTP 302 Found: Location: /", "redirects"),
        ("websocket", "the Sec-WebSocket-Accept does not answer the key", "middle box"), ("sse", "no event stream", "HTTP server"),
        ("mqtt", "CONNACK 1: unacceptable protocol version", "--mqtt-version"), ("mqtt", "CONNACK 132: x", "--mqtt-version"),
        ("mqtt", "CONNACK 133: x", "--mqtt-id"), ("mqtt", "CONNACK 5: not authorized", "--mqtt-login-file"), ("mqtt", "DISCONNECT 135: x", "--mqtt-login-file"),
        ("mqtt", "CONNACK 3: server unavailable", "load"), ("mqtt", "CONNACK 137: x", "load"), ("mqtt", "SUBACK 135: not authorized for a", "--subscribe"),
        ("mqtt", "b'HTTP/1.1 400' in place of CONNACK", "speaks MQTT"), ("mqtt", "closed without an answer", "speaks MQTT"),
        ("http2", "GOAWAY 11", "calm"), ("http2", "MAX_CONCURRENT_STREAMS 0: 1 needed", "--h2-heartbeat"), ("http2", "it speaks HTTP/1: x", "--http2"),
        ("websocket", "an extension that was not offered: permessage-deflate", "--ws-deflate"),
        ("tcp", "b'554' in place of '/^220/'", "--greeting"),
    ],
)  # fmt: skip
def test_a_refusal_has_the_remedy_of_its_code(protocol: str, reason: str, flag: str) -> None:
    assert flag in remedy_of_refusals(protocol, [reason]).replace(protocol_codes._ERROR_CODES[11][1], "calm")


def test_several_have_each_its_own_once_and_none_that_of_silence() -> None:
    both = remedy_of_refusals("websocket", ["HTTP 404 a", "HTTP 503 b", "HTTP 503 c"]).split("; ")
    assert both == [remedy_of_refusals("websocket", ["HTTP 404"]), remedy_of_refusals("websocket", ["HTTP 500"])]
    assert "speaks MQTT" in remedy_of_refusals("mqtt")
    assert ("--expect" in remedy_of_broken("tcp"), "--http2" in remedy_of_broken("http")) == (True, False)
    resets = ("RST_STREAM 7", "RST_STREAM 1", "RST_STREAM", "status 404")
    assert [name_of_reset(why) for why in resets] == ["RST_STREAM 7 (refused stream)", "RST_STREAM 1 (protocol error)", "RST_STREAM", "status 404"]
    assert ["send_timeout" in remedy_of_refusals("http2", [why]) for why in resets] == [False, True, True, False]
    assert ("--http2" in remedy_of_broken("http", {SPEAKS_HTTP2: 2, SPEAKS_TLS: 1}), "https://" in remedy_of_broken("http", {SPEAKS_TLS: 2, SPEAKS_HTTP2: 1})) == (True, True)


def test_a_broker_may_have_ended_the_older_of_two_with_one_id() -> None:
    assert ["--mqtt-id" in remedy_of_unexplained(one, "closed_idle") for one in ("mqtt", "websocket")] == [True, False]


@pytest.mark.parametrize(
    ("server", "named"),
    [("nginx", ["nginx"]), ("haproxy", ["HAProxy"]), ("Apache", ["Apache"]), ("gunicorn", []), ("", ["nginx", "Apache", "HAProxy"]), ("the server", ["nginx", "Apache", "HAProxy"])],
)  # fmt: skip
def test_a_remedy_names_settings_of_the_recognised_server(server: str, named: list[str]) -> None:
    directives = {"nginx": "worker_connections", "Apache": "MaxRequestWorkers", "HAProxy": "maxconn"}
    remedy = words_of("never_accepted", False, name=server, server="it", beats="none was answered").remedy
    assert [name for name, one in directives.items() if one in remedy] == named
    # The name of a server is only needed where it is not known.
    assert [name for name in directives if f"{name}:" in remedy] == (named if len(named) > 1 else [])
    assert ("keepalive_time" in remedy_of_unexplained("http", "closed_announced", server)) is ("nginx" in named)


def test_each_code_of_http2_has_a_name_and_each_that_ends_a_stream_its_remedy() -> None:
    # RFC 9113, section 7: 0x00 to 0x0d.
    assert all(" (" in code_of_goodbye("http2", code) for code in range(0x0E))
    resets = {code: remedy_of_broken("http2", {f"RST_STREAM {code} in place of an answer": 1}) for code in (0, 7, 11, 13, 99)}
    assert [resets[0] == resets[99], len(set(resets.values()))] == [True, 4]
    assert ("http2_max_concurrent_streams" in resets[7], "--keepalive" in resets[11], "--http2" in resets[13]) == (True, True, True)


@pytest.mark.parametrize(
    ("code", "flag"), [(142, "--mqtt-id"), (141, "--keepalive"), (159, "--ramp"), (160, "hold"), (135, "--mqtt-login-file"), (131, "see its log")]
)
def test_a_broker_that_disconnects_says_what_to_change(code: int, flag: str) -> None:
    assert flag in words_of_goodbye("mqtt", code).remedy


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("not a status line: b'SSH-2.0'", "not_http"), (SPEAKS_TLS, "not_http"), ("", "not_http"), ("not a header: b'x'", "broken_protocol"),
        ("a second answer to one request", "broken_protocol"), ("more than asyncli reads: a head of over 65,536 bytes", "answer_unread"),
        ("RST_STREAM 7 in place of an answer", "stream_reset"),
    ],
)  # fmt: skip
def test_only_what_is_no_http_is_called_so(why: str, kind: str) -> None:
    assert kind_of_break("http", why) == kind


def test_a_loss_is_told_in_the_words_of_its_protocol() -> None:
    words = [describe_loss("closed_announced", 2, protocol) for protocol in ("http", "http2", "websocket", "mqtt")]
    assert [word in text for word, text in zip(("'Connection: close'", "GOAWAY", "close frame", "DISCONNECT"), words, strict=True)] == [True] * 4


def test_of_http2_0_is_a_code() -> None:
    assert [code_of_goodbye(*one) for one in (("http2", 0), ("websocket", 0), ("sse", 0), ("websocket", 4001))] == ["0 (no error)", "", "", "4001"]


@pytest.mark.parametrize(
    ("by_status", "of", "named"),
    [
        ({404: 9}, 9, ["--method"]), ({405: 9, 404: 1}, 10, ["--method"]), ({401: 9}, 9, ["Authorization"]), ({403: 9}, 90, ["Authorization"]),
        ({503: 9}, 9, ["limits"]), ({429: 9}, 90, ["limits"]), ({502: 3, 504: 6}, 9, ["backend"]), ({500: 9}, 9, ["error log for the reason"]),
        # Of the same requests some had better answers.
        ({404: 9}, 90, ["error log for the reason"]),
        ({503: 5, 401: 4}, 9, ["limits", "Authorization"]), ({503: 4, 401: 5}, 9, ["Authorization", "limits"]), ({400: 9}, 9, ["https://"]),
    ],
)  # fmt: skip
def test_an_error_answer_has_the_remedy_of_its_kind(by_status: dict[int, int], of: int, named: list[str]) -> None:
    remedies = ("--method", "Authorization", "limits", "backend", "error log for the reason", "https://")
    remedy = remedy_of_statuses(by_status, of, over_tls=False)
    assert sorted((one for one in remedies if one in remedy), key=remedy.index) == named
