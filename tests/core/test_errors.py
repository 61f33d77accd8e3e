"""Messages of errors that several places raise."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from fastreader.errors import MissingExtraError

SOURCE = Path(__file__).parents[2] / "src"
RAISED = re.compile(r'MissingExtraError\([^()]*, "([\w-]+)"\)')
EXTRAS = sorted({extra for file in SOURCE.rglob("*.py") for extra in RAISED.findall(file.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_missing_extra_names_what_to_install(extra):
    assert extra in metadata.metadata("fastreader").get_all("Provides-Extra")
    assert re.search(r"with: pip install '[\w-]", str(MissingExtraError("a package", extra)))


def test_a_missing_extra_is_named_where_fastreader_is_not_installed(monkeypatch):
    def requires(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    message = "httpx is not installed; install the extra engines of fastreader with: pip install httpx"
    assert str(MissingExtraError("httpx", "engines")) == message
    assert len(EXTRAS) > 10  # the search above finds them
