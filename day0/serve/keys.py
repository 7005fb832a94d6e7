"""API keys: who may ask, compared in constant time, never shown."""

import hashlib
import hmac
import os
from pathlib import Path

from day0.errors import Day0Error

ENVIRONMENT = "DAY0_API_KEYS"
_SHORTEST = 8


class ApiKeys:
    """A set of keys; with none of them everybody may ask. Only their SHA-256 digests are kept."""

    def __init__(self, keys: list[str]) -> None:
        short = sum(len(key) < _SHORTEST for key in keys)
        if short:
            raise Day0Error(f"{short} of the API keys are shorter than {_SHORTEST} characters", hint="make longer ones")
        self._digests = [_digest(key) for key in keys]

    @classmethod
    def found(cls, file: Path | None) -> "ApiKeys":
        """The keys of `file`, one a line (`#` begins a comment), and of DAY0_API_KEYS, separated by commas.

        Raises Day0Error: no such file, one without a key (which would let everybody in), a key too short.
        """
        keys = [key.strip() for key in os.environ.get(ENVIRONMENT, "").split(",")]
        if file is not None:
            try:
                lines = file.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise Day0Error(f"the key file {file} cannot be read", hint="give a text file, a key a line") from error
            in_file = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
            if not in_file:
                raise Day0Error(f"the key file {file} holds no key", hint="write one a line, or leave the file out")
            keys += in_file
        return cls([key for key in keys if key])

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, authorization: str | None) -> bytes | None:
        """A name for whoever holds the key of an Authorization header, b"" where no keys are asked for; None: nobody.

        Every key is compared whole, so that the time tells nothing about any.
        """
        if not self._digests:
            return b""
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        found = [hmac.compare_digest(given, digest) for digest in self._digests]
        return given[:8] if any(found) and scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).digest()
