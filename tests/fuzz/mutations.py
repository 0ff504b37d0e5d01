"""Ways to break a file: some blind, some that know what parsers trip over."""

from __future__ import annotations

import random

TOKENS = [
    b"\n", b"\r\n", b"\r", b"\t", b" ", b",", b":", b";", b"|", b'"', b"\\", b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf",
    b"-1", b"0", b"99999999999999999999", b"4294967296", b"1e999", b"nan", b"inf", b"-0", b"1e-400", b"0x10",
    b"{", b"}", b"[", b"]", b"null", b"true", b"__label__", b"'", b"\xe2\x80\xa8", b"\x1f\x8b\x08", b"PK\x03\x04",
]  # fmt: skip


def broken(content: bytes, rng: random.Random) -> bytes:
    """The content with one to four things done to it."""
    for _ in range(rng.randint(1, 4)):
        content = rng.choice(_WAYS)(content, rng)
    return content


def _flip(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return content
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randint(0, len(content))]


def _cut_front(content: bytes, rng: random.Random) -> bytes:
    return content[rng.randint(0, len(content)) :]


def _insert(content: bytes, rng: random.Random) -> bytes:
    place = rng.randint(0, len(content))
    return content[:place] + rng.choice(TOKENS) + content[place:]


def _overwrite(content: bytes, rng: random.Random) -> bytes:
    place, token = rng.randint(0, len(content)), rng.choice(TOKENS)
    return content[:place] + token + content[place + len(token) :]


def _remove(content: bytes, rng: random.Random) -> bytes:
    begin = rng.randint(0, len(content))
    return content[:begin] + content[begin + rng.randint(0, 20) :]


def _repeat(content: bytes, rng: random.Random) -> bytes:
    begin = rng.randint(0, len(content))
    piece = content[begin : begin + rng.randint(0, 40)]
    return content[:begin] + piece * rng.randint(2, 30) + content[begin:]


def _noise(content: bytes, rng: random.Random) -> bytes:
    place = rng.randint(0, len(content))
    return content[:place] + rng.randbytes(rng.randint(1, 30)) + content[place:]


def _other_number(content: bytes, rng: random.Random) -> bytes:
    """Replace one run of digits by another number."""
    places = [i for i, byte in enumerate(content) if 48 <= byte <= 57]
    if not places:
        return content
    begin = end = rng.choice(places)
    while end < len(content) and 48 <= content[end] <= 57:
        end += 1
    return content[:begin] + str(rng.choice([0, 1, 7, 255, 2**31 - 1, 2**31, 2**63, 10**25])).encode() + content[end:]


_WAYS = [_flip, _cut, _cut_front, _insert, _overwrite, _remove, _repeat, _noise, _other_number, _other_number]
