# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Fingerprints of the OpenPGP keys in an armored file, so that a repository's key is compared before apt trusts it.

No gpg is needed on the host: a fingerprint is a digest of the public key's packet
(version 4: RFC 4880, 12.2; version 6: RFC 9580, 5.5.4.3).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import typing as t

_PUBLIC_KEY = 6  # the tag of a primary key; a subkey is 14


def written(text: str) -> str:
    """A fingerprint as it is compared: gpg prints it in groups, others begin it with 0x or use small letters."""
    return re.sub(r"^0X", "", re.sub(r"\s", "", text).upper())


def fingerprints(armored: str) -> list[str]:
    """Fingerprints of all primary keys in a text, upper case, in order. Empty when it holds none, or cannot be read."""
    found: list[str] = []
    for block in re.findall(r"-----BEGIN PGP PUBLIC KEY BLOCK-----(.*?)-----END PGP PUBLIC KEY BLOCK-----", armored, re.DOTALL):
        lines = block.replace("\r", "").split("\n")
        # Headers of the armor end with an empty line; "=" begins its checksum.
        start = next((number + 1 for number, line in enumerate(lines) if number and not line.strip()), 1)
        body = "".join(line.strip() for line in lines[start:] if not line.startswith("="))
        try:
            data = base64.b64decode(body, validate=True)
            found += [_fingerprint(packet) for tag, packet in _packets(data) if tag == _PUBLIC_KEY]
        except (binascii.Error, ValueError, IndexError):
            return []
    return found


def _packets(data: bytes) -> t.Iterator[tuple[int, bytes]]:
    """(tag, body) of each packet (RFC 4880, 4.2). Raises ValueError or IndexError on what is none."""
    place = 0
    while place < len(data):
        first = data[place]
        if not first & 0x80:
            raise ValueError("no packet")
        if first & 0x40:
            tag, size = first & 0x3F, data[place + 1]
            place += 2
            if size == 255:
                size = int.from_bytes(data[place : place + 4], "big")
                place += 4
            elif size >= 224:
                raise ValueError("a key is never sent in parts")
            elif size >= 192:
                size = ((size - 192) << 8) + data[place] + 192
                place += 1
        else:
            tag, width = first >> 2 & 0x0F, first & 3
            if width == 3:
                raise ValueError("no length")
            size = int.from_bytes(data[place + 1 : place + 1 + (1 << width)], "big")
            place += 1 + (1 << width)
        if place + size > len(data):
            raise ValueError("cut off")
        yield tag, data[place : place + size]
        place += size


def _fingerprint(packet: bytes) -> str:
    if packet[0] == 4:
        digest = hashlib.sha1(b"\x99" + len(packet).to_bytes(2, "big") + packet)  # noqa: S324 - what the fingerprint is
        return digest.hexdigest().upper()
    if packet[0] == 6:
        return hashlib.sha256(b"\x9b" + len(packet).to_bytes(4, "big") + packet).hexdigest().upper()
    raise ValueError("an old kind of key")
