"""A real browser without a window: for tests, and for pictures of pages.

python tests/support/browser.py REPORT.html OUT.png [WIDTH HEIGHT] takes the picture of a page as
it opens, its first HEIGHT pixels; a HEIGHT of 0 takes the whole page.
"""

import pathlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PROGRAMS = ("chromium", "chromedriver")
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


def missing() -> str | None:
    """Why there is no browser; None if there is one."""
    absent = [name for name in PROGRAMS if not shutil.which(name)]
    if absent:
        return f"no {' and no '.join(absent)}: apt-get install chromium chromium-driver"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "no selenium: pip install -e '.[test]'"
    return None


@contextmanager
def opened(path: pathlib.Path, width: int = 1200, height: int = 1000) -> Iterator[Any]:
    """Opens a file in Chromium; gives Selenium's driver."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in (*ARGUMENTS, f"--window-size={width},{height}"):
        options.add_argument(argument)
    # What the page says on the console, and every request that it makes.
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.get(path.resolve().as_uri())
        yield driver
    finally:
        driver.quit()


def picture(driver: Any, path: pathlib.Path, width: int = 1200, height: int = 0) -> None:
    """Takes a picture of the page, `height` pixels of it; 0: all."""
    height = height or driver.execute_script("return document.documentElement.scrollHeight")
    sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
    driver.save_screenshot(str(path))
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


if __name__ == "__main__":
    if why := missing():
        sys.exit(why)
    source, target = map(pathlib.Path, sys.argv[1:3])
    size = [int(x) for x in sys.argv[3:5]] or [1200, 0]
    with opened(source, size[0]) as browser:
        picture(browser, target, *size)
