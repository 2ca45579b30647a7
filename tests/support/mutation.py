"""Mutations of image files: bytes that are wrong, and parts that are missing, repeated, exchanged or lie."""

from __future__ import annotations

import random
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

Mutation: TypeAlias = Callable[[bytes, random.Random], bytes]
NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)
ENDS = (b"\xff\xd9", b"\0\0\0\0IEND\xaeB`\x82", b"\0;", b"\0\1", b"")


def mutated(seeds: Sequence[bytes], random_: random.Random) -> bytes:
    """Return a file made from one of the seeds by one to three mutations, some of which take parts of another."""
    data = random_.choice(seeds)
    for _ in range(random_.choice((1, 1, 2, 3))):
        mutation = random_.choice(MUTATIONS)
        data = _spliced(data, random_.choice(seeds), random_) if mutation is None else mutation(data, random_)
    return data


def _place(data: bytes, random_: random.Random) -> int:
    """Return a place in the file; headers are short and matter most."""
    return random_.randrange(min(random_.choice((64, 256, len(data) + 1)), len(data) + 1))


def _flip_bits(data: bytes, random_: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(random_.choice((1, 2, 8, 64))):
        changed[min(_place(data, random_), len(changed) - 1)] ^= 1 << random_.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, random_: random.Random) -> bytes:
    at, length = _place(data, random_), random_.choice((1, 4, 16, 300))
    run = random_.choice((bytes(length), b"\xff" * length, random_.randbytes(length)))
    return data[:at] + run + data[at + length :]


def _lie(data: bytes, random_: random.Random) -> bytes:
    """Put a number that is at some limit where a length, a count, an offset or a size may be."""
    number, at = random_.choice(NUMBERS), _place(data, random_)
    code = random_.choice("BHI")
    new = struct.pack(random_.choice("<>") + code, number % 256 ** struct.calcsize(code))
    return data[:at] + new + data[at + len(new) :]


def _remove(data: bytes, random_: random.Random) -> bytes:
    at = _place(data, random_)
    return data[:at] + data[at + random_.choice((1, 2, 12, 500)) :]


def _repeat(data: bytes, random_: random.Random) -> bytes:
    at, length = _place(data, random_), random_.choice((1, 4, 60, 2000))
    return data[:at] + data[at : at + length] * random_.choice((2, 3, 50)) + data[at + length :]


def _cut(data: bytes, random_: random.Random) -> bytes:
    return data[: random_.randrange(len(data) + 1)]


def _cut_and_end(data: bytes, random_: random.Random) -> bytes:
    return _cut(data, random_) + random_.choice(ENDS)


def _append(data: bytes, random_: random.Random) -> bytes:
    return data + random_.choice((random_.randbytes(300), data, bytes(5000), b"PK\x05\x06" + bytes(18)))


def _spliced(data: bytes, other: bytes, random_: random.Random) -> bytes:
    """Return the start of one file and the end of another, which may be of another format."""
    return _cut(data, random_) + other[random_.randrange(len(other) + 1) :]


def _rearrange(data: bytes, random_: random.Random) -> bytes:
    """Remove, repeat, exchange or change whole parts: segments of a JPEG, chunks of a PNG or WebP, tags of a TIFF."""
    head, parts, join = _parts(data)
    if not parts:
        return _flip_bits(data, random_)
    one, two = random_.randrange(len(parts)), random_.randrange(len(parts))
    action = random_.randrange(5)
    if action == 0:
        del parts[one]
    elif action == 1:
        parts.insert(two, parts[one])
    elif action == 2:
        parts[one], parts[two] = parts[two], parts[one]
    elif action == 3:
        parts[one:one] = [parts[one]] * random_.choice((10, 1000))
    else:
        parts[one] = random_.choice((_flip_bits, _overwrite, _lie, _remove, _cut))(parts[one], random_)
    return join(head, parts)


MUTATIONS: tuple[Mutation | None, ...] = (
    _flip_bits, _overwrite, _lie, _lie, _remove, _repeat, _cut, _cut_and_end, _append, _rearrange, _rearrange, None,
)  # fmt: skip

Join: TypeAlias = Callable[[bytes, list[bytes]], bytes]


def _parts(data: bytes) -> tuple[bytes, list[bytes], Join]:
    """Split a file into its start and parts; what joins them makes checksums and lengths right again."""
    if data.startswith(b"\x89PNG"):
        return data[:8], _png_chunks(data), _join_png
    if data.startswith(b"RIFF"):
        return data[:12], _riff_chunks(data), _join_riff
    if data.startswith(b"\xff\xd8"):
        starts = [each.start() for each in re.finditer(rb"\xff[\xc0-\xfe]", data)][:200]
        ends = [*starts[1:], len(data)]
        return b"", [data[start:end] for start, end in zip(starts, ends, strict=True)], _concatenate
    if data.startswith((b"II*\0", b"MM\0*")) and len(data) > 10:
        order = "<" if data[:1] == b"I" else ">"
        first = struct.unpack(order + "I", data[4:8])[0] + 2
        count = min(struct.unpack(order + "H", data[first - 2 : first].ljust(2, b"\0"))[0], 50)
        entries = [data[first + 12 * number : first + 12 * number + 12] for number in range(count)]
        return data[:first], [*entries, data[first + 12 * count :]], _concatenate
    return b"", [data[at : at + 100] for at in range(0, min(len(data), 4000), 100)], _concatenate


def _concatenate(head: bytes, parts: list[bytes]) -> bytes:
    return head + b"".join(parts)


def _png_chunks(data: bytes) -> list[bytes]:
    """Return type and content of each chunk."""
    chunks, at = list[bytes](), 8
    while at + 12 <= len(data) and len(chunks) < 200:
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append(data[at + 4 : at + 8 + length])
        at += 12 + length
    return chunks


def _join_png(head: bytes, chunks: list[bytes]) -> bytes:
    return head + b"".join(
        struct.pack(">I", max(len(each) - 4, 0)) + each + struct.pack(">I", zlib.crc32(each)) for each in chunks
    )


def _riff_chunks(data: bytes) -> list[bytes]:
    chunks, at = list[bytes](), 12
    while at + 8 <= len(data) and len(chunks) < 200:
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        chunks.append(data[at : at + 4] + data[at + 8 : at + 8 + length])
        at += 8 + length + length % 2
    return chunks


def _join_riff(head: bytes, chunks: list[bytes]) -> bytes:
    body = b"".join(
        each[:4].ljust(4) + struct.pack("<I", len(each[4:])) + each[4:] + bytes(len(each[4:]) % 2) for each in chunks
    )
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + head[8:12] + body
