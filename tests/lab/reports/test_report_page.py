"""report.html in a real browser: it renders, its clocks switch, its lines hide, its tables sort."""

import json
import pathlib

import browser
import pytest
import reported_study

from scalelab.lab.compare import hypotheses
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.reading import study_runs
from scalelab.lab.reports import report
from scalelab.thesis import comparison

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing())),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("page")
    study = study_runs.read(reported_study.write(folder, title="Two <objectives> & a 'question'"))
    evidence = StudyScores(study)
    findings = hypotheses.evaluate(comparison, evidence, ["1a", "6"])
    return report.write(study, folder / "report", evidence=evidence, findings=findings)


@pytest.fixture(scope="module")
def driver(page):
    with browser.opened(page) as opened:
        yield opened


def find(driver, selector: str):
    return driver.find_element("css selector", selector)


def find_all(driver, selector: str):
    return driver.find_elements("css selector", selector)


def press(driver, selector: str, text: str) -> None:
    (button,) = [b for b in find_all(driver, selector) if b.text == text]
    button.click()


def titles(driver) -> list[str]:
    texts = find_all(driver, '[data-chart="loss"] text.title')
    return [text.text for text in texts]


def test_it_renders_without_errors_and_without_network(driver, page) -> None:
    assert find(driver, "h1").text == "Two <objectives> & a 'question'"
    assert len(find_all(driver, '[data-chart="loss"] g.series path')) > 8
    assert len(find_all(driver, '[data-chart="score"] g.series .bar')) == 4
    assert find_all(driver, ".verdict")
    messages = [entry for entry in driver.get_log("browser")]
    assert messages == []
    requests = [json.loads(e["message"])["message"] for e in driver.get_log("performance")]
    addresses = {r["params"]["request"]["url"] for r in requests
                 if r["method"] == "Network.requestWillBeSent"}  # fmt: skip
    assert addresses == {page.resolve().as_uri()}


def test_a_click_on_a_clock_switches_the_axis(driver) -> None:
    control = '[data-chart="loss"] [data-control="x"]'
    assert titles(driver) == ["steps", "validation loss (nats)"]
    first = find(driver, '[data-chart="loss"] g.series path').get_attribute("d")
    for clock in ("tokens", "training FLOPs", "seconds of training"):
        press(driver, control, clock)
        assert titles(driver)[0] == clock
    assert find(driver, '[data-chart="loss"] g.series path').get_attribute("d") != first
    press(driver, '[data-chart="loss"] [data-control="logX"]', "log x")
    assert titles(driver)[0] == "seconds of training (log)"
    press(driver, '[data-chart="loss"] [data-control="y"]', "bits per byte")
    assert titles(driver)[1] == "bits per byte"
    press(driver, '[data-chart="loss"] [data-control="panel"]', "length 64")
    assert find_all(driver, '[data-chart="loss"] g.series path')
    press(driver, '[data-chart="loss"] [data-control="panel"]', "length 32")


def test_a_click_in_the_legend_hides_a_line_and_shows_it_again(driver) -> None:
    drawn = '[data-chart="loss"] g.series[data-name="bert 2x16x2"]'
    button = find(driver, '[data-chart="loss"] [data-series="bert 2x16x2"]')
    assert find_all(driver, drawn)
    button.click()
    assert not find_all(driver, drawn) and button.get_attribute("aria-pressed") == "false"
    button.click()
    assert find_all(driver, drawn)
    press(driver, '[data-chart="loss"] .group', "gpt2")  # a whole system at once
    names = {g.get_attribute("data-name") for g in find_all(driver, '[data-chart="loss"] g.series')}
    assert names == {"bert 2x16x2", "bert 2x32x2"}
    press(driver, '[data-chart="loss"] .group', "gpt2")


def test_a_point_says_its_values(driver) -> None:
    from selenium.webdriver import ActionChains

    marker = find(driver, '[data-chart="score"] g.series path[transform][stroke]:not(.bar)')
    ActionChains(driver).move_to_element(marker).perform()
    said = find(driver, '[data-chart="score"] .tip.on').text
    assert "bert 2x16x2" in said and "GLUE-Large: " in said and "[" in said and "6,144" in said


def test_a_click_on_a_header_sorts_by_number(driver) -> None:
    place = [h.text.split()[0] for h in find_all(driver, "#table-large th")].index("N")
    cells = f"#table-large tbody td:nth-child({place + 1})"
    order = [["6,144", "24,576"] * 2, ["6,144"] * 2 + ["24,576"] * 2]
    assert [c.text for c in find_all(driver, cells)] == order[0]
    header = find(driver, f"#table-large th:nth-child({place + 1}) button")
    header.click()  # as words, "24,576" would come first
    assert [c.text for c in find_all(driver, cells)] == order[1]
    header.click()
    assert [c.text for c in find_all(driver, cells)] == order[1][::-1]
    assert "smallest detectable" in find(driver, "#table-large tfoot").text


def test_a_picture_of_it_can_be_taken(driver, tmp_path) -> None:
    browser.picture(driver, tmp_path / "page.png", height=700)
    assert (tmp_path / "page.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "page.png").stat().st_size > 20_000
