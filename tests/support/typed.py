"""Records of tests, written as plain data."""

import msgspec

from keyhole.lab.runs.reading import read_record


def typed(data):
    """Plain data as the record that it is read as."""
    return read_record(msgspec.json.encode(data))
