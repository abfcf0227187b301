"""What the tenants' own commands share: calls of the API, with address and key from the environment."""

from __future__ import annotations

import argparse
import http.client
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import orjson

from api.names import name_faults
from engine.errors import CallerError, OperatorError
from engine.settings import SettingsError

URL_VARIABLE, KEY_VARIABLE = "SECONDZERO_URL", "SECONDZERO_API_KEY"
TIMEOUT_S = 60
ANSWER_BYTES_MAX = 64 << 20


class Api:
    """The API as one tenant calls it. What it refuses is an OperatorError with a line for each fault."""

    def __init__(self, url: str, key: str) -> None:
        self._parts = urlsplit(url)
        self._key = key

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        media_type: str = "application/json",
    ) -> Any:
        """The answer's JSON."""
        headers = {"Authorization": f"Bearer {self._key}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = media_type
        asked = {name: value for name, value in (query or {}).items() if value not in (None, [])}
        target = self._parts.path.rstrip("/") + path + (f"?{urlencode(asked, doseq=True)}" if asked else "")
        status, raw = self._send(method, target, None if body is None else orjson.dumps(body), headers)
        try:
            document = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise OperatorError(f"{self._parts.netloc} answers {status} and no JSON: is it the API?") from error
        if status >= 400:
            raise OperatorError("\n".join(_problem_lines(status, document)))
        return document

    def pages(self, path: str, key: str, query: Mapping[str, Any], entries_max: int | None) -> list[Any]:
        """The entries of a list, page after page, up to a number."""
        found: list[Any] = []
        token = None
        while entries_max is None or len(found) < entries_max:
            size = 1_000 if entries_max is None else min(1_000, entries_max - len(found))
            page = self.call("GET", path, query={**query, "page_size": size, "page_token": token})
            found += page[key]
            token = page["next_page_token"]
            if token is None:
                break
        return found

    def _send(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, target, body, dict(headers))
            response = connection.getresponse()
            return response.status, response.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise OperatorError(f"{self._parts.netloc} does not answer: {error}") from error
        finally:
            connection.close()


def api_of(environ: Mapping[str, str] = os.environ) -> Api:
    """The API that the environment names; SettingsError lists all that is missing."""
    url, key = environ.get(URL_VARIABLE, ""), environ.get(KEY_VARIABLE, "")
    problems = []
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        problems.append(f"{URL_VARIABLE}: must be the API's address, such as http://127.0.0.1:8900, not {url!r}")
    if not key:
        problems.append(f"{KEY_VARIABLE}: must be an API key; secondzero tenant create makes one")
    if problems:
        raise SettingsError(problems)
    return Api(url, key)


def add_verb(
    verbs: argparse._SubParsersAction[Any], name: str, run: Callable[[argparse.Namespace], int], help: str
) -> argparse.ArgumentParser:
    """A verb of a command that calls the API and reports."""
    variables = f"Reads {URL_VARIABLE} and {KEY_VARIABLE}."
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=help, description=f"{help[0].upper()}{help[1:]}. {variables}", allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(func=run)
    return parser


def job_path(name: str, *more: str) -> str:
    """The path of a job, or of something of it; CallerError with the rule for a name that can be none."""
    faults = name_faults(name)
    if faults:
        raise CallerError(faults)
    return "/v1/jobs/" + "/".join([quote(name, safe=""), *more])


def _problem_lines(status: int, document: Any) -> Iterator[str]:
    if not isinstance(document, dict) or "detail" not in document:
        yield f"answered {status}"
        return
    faults = document.get("errors", [])
    if not faults:
        yield f"{document['title']}: {document['detail']}"
    for fault in faults:
        example = f"; for example {fault['example']}" if "example" in fault else ""
        yield f"{fault['pointer'] or 'the body'}: {fault['detail']}{example}"
