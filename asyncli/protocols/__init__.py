"""The protocols that connections speak. To add one: a file here, its settings in words.py, and a case below."""

from __future__ import annotations

from collections.abc import Callable

from asyncli.protocols.http1 import Http1
from asyncli.protocols.interface import Protocol
from asyncli.protocols.words import Http2Words, HttpWords, MqttWords, StreamWords, TcpWords, WebSocketWords, Words
from asyncli.template import Fields


def new_protocol(words: Words, entropy: Callable[[int], bytes], fields: Fields) -> Protocol:
    """The protocol of a table's connections. ``entropy(n)`` returns n random bytes; ``fields``: of templates in ``words``."""
    # Imported late, so that workers of HTTP do not load them: hashlib loads OpenSSL, deflate zlib.
    match words:
        case HttpWords():
            return Http1(words.method, words.requests, fields)
        case WebSocketWords(deflate=True):
            from asyncli.protocols.deflate import Deflated

            return Deflated(words.requests, entropy, words.message, fields)
        case WebSocketWords():
            from asyncli.protocols.websocket import WebSocket

            return WebSocket(words.requests, entropy, words.message, fields)
        case StreamWords():
            from asyncli.protocols.sse import Stream

            return Stream(words, fields)
        case Http2Words():
            from asyncli.protocols.http2 import Http2

            return Http2(words, fields)
        case TcpWords():
            from asyncli.protocols.tcp import Tcp

            return Tcp(words, fields)
        case MqttWords():
            from asyncli.protocols.mqtt import Mqtt

            return Mqtt(words, fields)
