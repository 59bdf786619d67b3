"""Bytes of files mangled as disks, transfers and strangers mangle them."""

import re

NUMBERS = (b"0", b"-1", b"1", b"7", b"1e999", b"1e-999", b"0.5", b"9223372036854775808", b"NaN")
NUMBERS += (b"4294967296", b"1000000000", b"9" * 400, b"null", b"true", b"[]", b"{}", b'"a"', b"-0")
WORDS = (b'""', b'"a"', b'"\\ud800"', b'"\\u001b[31m"', b'"F8_E4M3"', b'"BF16"', b'"I64"', b'"F32"')
WORDS += (b'"' + b"x" * 3000 + b'"', b'"\\u0000"', b"null", b"3", b"[]", b"{}", b'"1e999"')
WORDS += (b'"1000000000"', b'"-1"', b'"[1e999]"', b'"' + b"[" * 2000 + b'"', b'"\xff"')
_NUMBER, _WORD = re.compile(rb"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"), re.compile(rb'"[^"\\]{0,80}"')


def flip_bits(data, rng):
    if not data:
        return b"\x00"
    spoilt = bytearray(data)
    for place in rng.integers(0, len(data), size=rng.integers(1, 9)):
        spoilt[place] ^= 1 << int(rng.integers(8))
    return bytes(spoilt)


def flip_bits_early(data, rng):
    """In the part where headers are."""
    end = min(len(data), 400)
    return flip_bits(data[:end], rng) + data[end:]


def truncate(data, rng):
    return data[: rng.integers(0, len(data))]


def cut_out(data, rng):
    start, stop = sorted(rng.integers(0, len(data) + 1, size=2))
    return data[:start] + data[min(stop, start + 64) :]


def double_part(data, rng):
    start = int(rng.integers(0, len(data)))
    return data[: start + 40] + data[start:]


def insert_bytes(data, rng):
    start = int(rng.integers(0, len(data) + 1))
    return data[:start] + rng.bytes(int(rng.integers(1, 20))) + data[start:]


def forge_size(data, rng):
    """Eight bytes, often the first, as a hostile whole number."""
    start = 0 if rng.random() < 0.5 else int(rng.integers(0, max(1, len(data) - 8)))
    size = int(rng.choice([0, 1, 7, 255, 1 << 31, 1 << 40, (1 << 62) - 1, (1 << 63) - 1]))
    return data[:start] + size.to_bytes(8, "little") + data[start + 8 :]


def _replace_one(pattern, choices, data, rng):
    found = list(pattern.finditer(data[:20_000]))
    if not found:
        return flip_bits(data, rng)
    one = found[rng.integers(len(found))]
    chosen = choices[rng.integers(len(choices))]
    return data[: one.start()] + chosen + data[one.end() :]


def forge_number(data, rng):
    return _replace_one(_NUMBER, NUMBERS, data, rng)


def forge_word(data, rng):
    return _replace_one(_WORD, WORDS, data, rng)


def keep_length_of_header(change):
    """A change of the JSON head of a safetensors file, whose length is written anew."""

    def changed(data, rng):
        size = int.from_bytes(data[:8], "little")
        if not 0 < size < len(data):
            return change(data, rng)
        head = change(data[8 : 8 + size], rng)
        return len(head).to_bytes(8, "little") + head + data[8 + size :]

    return changed


MANGLERS = [flip_bits, flip_bits_early, truncate, cut_out, double_part, insert_bytes, forge_size]
MANGLERS += [forge_number, forge_word]
MANGLERS += [keep_length_of_header(change) for change in (forge_number, forge_word, cut_out)]


def mangle(data, rng):
    """Other bytes: one change, or a few."""
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if data:
            data = MANGLERS[rng.integers(len(MANGLERS))](data, rng)
    return data
