"""Logs for programs: one JSON object a line, with the id of the request. No prompt, no answer, no key stands in one."""

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any, TextIO

# Of the request that is being answered, empty outside of one.
request_id: ContextVar[str] = ContextVar("request_id", default="")


class JsonLines(logging.Formatter):
    """time (UTC), level, logger, message, request_id, and what a call gave as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id.get():
            line["request_id"] = request_id.get()
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to(stream: TextIO | None = None, *, verbose: bool = False) -> None:
    """Send what this server and uvicorn log to a stream (stderr), instead of where it went before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("day0.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    # Requests are logged by this server itself, with what they took.
    logging.getLogger("uvicorn.access").disabled = True
