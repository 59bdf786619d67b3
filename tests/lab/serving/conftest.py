"""A served head for every test that asks one."""

import pytest

from keyhole.lab.serving.server import Limits
from keyhole.oracles.http.service import HttpService
from support.served_head import serving


@pytest.fixture(scope="module")
def service():
    with serving(limits=Limits(request_bytes=100_000)) as (address, _):
        yield address


@pytest.fixture
def oracle(service):
    made = HttpService(service)
    yield made
    made.close()
