import pytest
from helpers.serve_support import serving

pytest.importorskip("fastapi", reason="needs the extra serve")


@pytest.fixture(scope="module")
def client(tiny_reader):
    with serving(tiny_reader, names=("tiny",), max_body_bytes=1 << 20) as client:
        yield client
