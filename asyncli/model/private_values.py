"""The values of a plan that stay on the host that runs it: what it sends to the server, which may
be secret, and the names of files whose content it sends. Pure.

A run file has ``***`` in place of the first (see store/private_file.py for where they are kept),
and no plan from elsewhere, such as a stranger's run file, has the second opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from asyncli.model.masks import LOGIN, MASK, masked_page, masked_url, query_of_page
from asyncli.model.units import shown

# What is sent is masked whole: no rule tells a password from a word (AUTH hunter2, {"token": "x"}).
_WHOLE = ("mqtt_login", "send", "ws_message")
_HEADERS = ("headers", "status_headers")
# URLs with a login and a query: one, and several.
_PAGES = ("status_url", "server_metrics")
#: Fields whose values may be secret.
SECRETS = (*_HEADERS, "urls", *_PAGES, *_WHOLE)
_SEPARATORS = {"headers": ":", "status_headers": ":", "urls": "?"}
#: Keys of a plan that name a file whose content leaves this host, for the server or an agent.
SENT_FILES = (
    "header_file",
    "mqtt_login_file",
    "agent_token_file",
    "data",
    "client_cert",
    "client_key",
)
#: Those that a plan keeps by name: a resumed run opens the file again. That of ``data`` must be
#: unchanged (app/resume.py).
REOPENED = ("agent_token_file", "client_cert", "client_key")
#: The flags that give a field again.
_FLAGS = {
    "headers": "--header-file FILE",
    "urls": "the URL with its query",
    "mqtt_login": "--mqtt-login-file FILE",
    "send": "--send BYTES",
    "ws_message": "--ws-message TEXT",
    "agent_token_file": "--agent-token-file FILE",
    "client_cert": "--client-cert FILE",
    "client_key": "--client-key FILE",
    "status_headers": "--status-header HEADER",
    "status_url": "--status-url with its login and query",
    "server_metrics": "--server-metrics with its login and query",
}


# What a run file lacks of a field; of others the text that was sent.
_NOT_KEPT = {
    "headers": "the values of its headers",
    "urls": "the query of its URL",
    "mqtt_login": "its login",
    "status_headers": "the headers of its status page",
    "server_metrics": "the login and the query of its page of metrics",
    "status_url": "the login and the query of its status page",
}


def without_secrets(field: str, value: Any) -> Any:
    """A plan's value for display and for the run file: headers as ``Authorization: ***``."""
    if field in _HEADERS:
        return [f"{str(header).partition(':')[0]}: {MASK}" for header in value or ()]
    if field == "urls":
        return [masked_url(str(url)) for url in value or ()]
    if field == "status_url":
        return value and masked_page(str(value))
    if field == "server_metrics":
        return [masked_page(str(url)) for url in value or ()]
    if field in _WHOLE and value:
        return MASK
    return value


def recorded_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a plan (``plan.plan_document``) without its secrets."""
    return {field: without_secrets(field, value) for field, value in document.items()}


def private_values(document: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the recorded document of a plan lacks, or that count only if this host's user
    gave them: field -> value.
    """
    values = {}
    for field in SECRETS:
        if document.get(field) and not _is_recorded(field, document[field]):
            values[field] = document[field]
    for field in REOPENED:
        if document.get(field):
            values[field] = document[field]
    return values


def _is_recorded(field: str, value: Any) -> bool:
    if isinstance(value, tuple):
        value = list(value)
    return bool(without_secrets(field, value) == value)


def missing_values(document: Mapping[str, Any]) -> list[str]:
    """The fields of a recorded plan whose values must be given to resume it. A run file of an
    earlier asyncli has the secrets.
    """
    masked = [field for field in SECRETS if _has_mask(field, document.get(field))]
    reopened = [field for field in REOPENED if document.get(field)]
    return masked + reopened


def _has_mask(field: str, value: Any) -> bool:
    if field in _HEADERS:
        return any(header.endswith(f": {MASK}") for header in value or ())
    if field == "status_url":
        return _is_masked_page(value or "")
    if field == "server_metrics":
        return any(_is_masked_page(page) for page in value or ())
    if field == "urls":
        return any(url.endswith(f"?{MASK}") for url in value or ())
    return bool(value == MASK)


def _is_masked_page(page: str) -> bool:
    return f"://{MASK}@" in page or page.endswith(f"?{MASK}")


def given_again(document: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The missing values of a recorded plan, from ``values``. Raises ``ValueError`` for one that is
    missing, or not the run's.
    """
    missing = missing_values(document)
    unknown = [field for field in missing if field not in values]
    if unknown:
        reasons = " and ".join(_kept_back(field, document[field]) for field in unknown)
        flags = " and ".join(_FLAGS[field] for field in unknown)
        raise ValueError(f"{reasons}; write {flags} again")
    for field in missing:
        if not is_same(field, values[field], document[field]):
            masked = without_secrets(field, document[field])
            names = masked if isinstance(masked, str) else ", ".join(masked)
            raise ValueError(
                f"the run was started with {shown(names)}, in this order; write the same again"
            )
    return {field: values[field] for field in missing}


def is_same(field: str, value: Any, recorded: Any) -> bool:
    """Whether ``value`` could be the one that is recorded without its secrets: headers of the same
    names, the same URLs.
    """
    if field not in SECRETS:
        return True
    return bool(without_secrets(field, value) == without_secrets(field, recorded))


def _kept_back(field: str, value: Any) -> str:
    """Why a value is not known."""
    if field in REOPENED:
        return f"a file that a run file names is not opened by itself ({shown(value)})"
    return f"a run file does not keep {_NOT_KEPT.get(field, 'the text that it sent')}"


def secret_texts(document: Mapping[str, Any]) -> list[str]:
    """The values of a plan's document that may be secret: of headers, queries and logins, and the
    texts that are sent.
    """
    texts = []
    for field in SECRETS:
        value = document.get(field) or ()
        for text in (value,) if isinstance(value, str) else value:
            if field in _PAGES:
                texts += LOGIN.findall(text)
                texts += query_of_page(text)
            elif field in _SEPARATORS:
                _, _, after_separator = text.partition(_SEPARATORS[field])
                texts.append(after_separator)
            else:
                texts.append(text)
    return texts


class PrivateValues(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file beside a run file: the run that it belongs to, a digest of its
    recorded plan, and the values.
    """

    run: str
    plan: str
    values: dict[str, Any]
