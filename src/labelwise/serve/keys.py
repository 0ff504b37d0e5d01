"""API keys: read from a file or the environment, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from labelwise.errors import ConfigError
from labelwise.serve.settings import KEYS_VARIABLE, Settings

LEAST = 16
"""Characters of a key; shorter ones can be guessed."""


class ApiKeys:
    """The accepted keys, of which only hashes are kept."""

    def __init__(self, hashes: Iterable[bytes]) -> None:
        self.hashes = list(hashes)

    @classmethod
    def of(cls, settings: Settings) -> ApiKeys:
        """The keys of the settings' file and of the environment; none if neither names any.

        Hashes in the settings are those of both: the parent process has read them.
        """
        if settings.key_hashes is not None:
            return cls(map(bytes.fromhex, settings.key_hashes))
        keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",")]
        where = KEYS_VARIABLE
        if settings.keys_file is not None:
            where = settings.keys_file
            try:
                lines = Path(where).read_text(encoding="utf-8").splitlines()
            except UnicodeDecodeError:
                raise ConfigError(f"{where}: the keys are not UTF-8 text") from None
            keys += [line.strip() for line in lines if not line.lstrip().startswith("#")]
        given = [key for key in keys if key]
        if settings.keys_file is not None and not given:
            raise ConfigError(f"{where}: there is no key in it; write one per line")
        if any(len(key) < LEAST for key in given):
            raise ConfigError(f"{where}: a key has fewer than {LEAST} characters and can be guessed; make a longer one")
        return cls(_hashed(key.encode()) for key in given)

    def __bool__(self) -> bool:
        return bool(self.hashes)

    def accept(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request has a key: `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
        given = headers.get(b"x-api-key")
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if given is None and scheme.lower() == b"bearer":
            given = token.strip()
        hashed = _hashed(given or b"")
        found = False
        for known in self.hashes:  # all of them, so that the time does not depend on which one matches
            found |= hmac.compare_digest(known, hashed)
        return found and given is not None


def _hashed(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
