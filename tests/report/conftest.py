"""A browser for the tests of pages."""

import pytest
from helpers.browser import CHROMIUM, browser


@pytest.fixture(scope="module")
def chromium():
    if not CHROMIUM:
        pytest.skip("needs Chromium: apt-get install chromium")
    with browser() as started:
        yield started


@pytest.fixture
def opened(chromium):
    """opened(file, ...): the browser with that page; in the end, nothing was asked for and nothing complained."""
    files = []

    def open_page(file, **how):
        files.append(file.resolve().as_uri())
        chromium.open(file, **how)
        return chromium

    yield open_page
    assert chromium.complaints() == []
    assert [url for url in chromium.requests() if not url.startswith("data:")] == files[-1:]
