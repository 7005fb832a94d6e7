"""What a client is told when something is wrong, in the shape of the OpenAI API."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from day0.errors import Day0Error

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "server_error",
}


class ApiError(HTTPException):
    """An answer that is no answer: `{"error": {message, type, param, code}}` with an HTTP status.

    `param` is the request's field that is wrong, `code` a word that programs can rely on, `retry_after_s` whole seconds
    after which the same request may go through.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(status, message, headers)
        self.message = message
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status_code, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_request(error: Day0Error, *, fields: Mapping[str, Any] | None = None) -> ApiError:
    """A 400 of an error that the client can act on; `param` is the field of the request that its message names."""
    words = error.message.replace(":", " ").split()
    param = next((word for word in words if word in (fields or ())), None)
    hint = f" ({error.hint})" if error.hint else ""
    return ApiError(400, f"{error.message}{hint}", param=param, code="invalid_value")


class Answer(JSONResponse):
    """JSON in ASCII: it may repeat what a client sent, which need not be text that UTF-8 can hold."""

    def render(self, content: Any) -> bytes:
        return ascii_json(content)


def ascii_json(content: Any) -> bytes:
    """Compact JSON; in a stream of events no character of it is taken for a line's end. Raises ValueError on NaN."""
    return json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def error_answer(error: ApiError) -> Answer:
    return Answer(error.body, error.status_code, headers=dict(error.headers or {}))
