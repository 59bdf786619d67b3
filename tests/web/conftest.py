"""An explorer that is asked without a browser, and a recovery in it."""

import pytest

from keyhole.web.explorer import Explorer, Window
from support.explorer_client import Client


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    window = Window(Explorer(tmp_path_factory.mktemp("explorer") / "runs"), 0, str)
    with window.beside():
        yield Client(window)


@pytest.fixture(scope="module")
def recovered(client):
    return client.finished("recover", width=6, rank=2, seed=3)
