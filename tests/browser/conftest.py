"""Fixtures for the system's Chromium in headless mode. Screenshots are saved in test-artifacts/browser."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import cli, finished, shared_torch, tiny

__all__ = ["cli", "finished", "shared_torch", "tiny"]
NAMES = ("chromium", "chromium-browser")
SHOTS = Path(__file__).parents[2] / "test-artifacts" / "browser"
DESK, PHONE = {"width": 1400, "height": 1000}, {"width": 390, "height": 844}


@dataclass
class Visit:
    """A page with its requests, console messages and dialogs since it was opened."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def shot(self, name: str, whole: bool = False) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=whole)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no Playwright: the extra [dev] brings it")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        # needed because CI runs as root
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Any]:
    """Return a function that opens an address: `visit(url, PHONE)`. A dialog counts as an error."""
    contexts = []

    def go(url: str, size: dict[str, int] = DESK, wait: str = "load") -> Visit:
        contexts.append(chromium.new_context(viewport=size, locale="en-GB", has_touch=size is PHONE))
        page = contexts[-1].new_page()
        page.set_default_timeout(30_000 if url.startswith("file:") else 180_000)  # MLflow's first page loads slowly
        seen = Visit(page)
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on(
            "console",
            lambda m: (
                seen.complaints.append(f"{m.text} {m.location['url']}") if m.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (seen.complaints.append(dialog.message), dialog.dismiss()))
        page.goto(url, wait_until=wait)
        return seen

    yield go
    for context in contexts:
        context.close()
