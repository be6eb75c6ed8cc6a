"""The report page in a real browser: shown, filtered, linked and copied, without a network, on a desk and a phone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recorded_runs import training, write_run
from sample_report import sample_details
from sample_rules import make_invariant
from sample_studies import study
from traincheck.cli.main import main
from traincheck.reporting.html.run_section import PageRun
from traincheck.reporting.html.sink import page_of
from traincheck.reporting.json_report import write_json
from traincheck.reporting.study.page import study_page
from traincheck.vocab.finding import NOT_TRIGGERED, PASSED, VIOLATED, Report
from traincheck.vocab.invariant import Invariant

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "buggy" / "missing_zero_grad.py"
PHONE, DESK = (390, 844), (1280, 900)
READ_CLIPBOARD = "navigator.clipboard.readText().then(arguments[0], (e) => arguments[0](`${e}`))"
HOSTILE = "<img src=http://127.0.0.1:9/x onerror=alert(1)>"


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    """A headless Chromium that stores requests and errors."""
    selenium = pytest.importorskip("selenium.webdriver")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    program = shutil.which("chromedriver")
    if browser is None or program is None:
        pytest.skip("there is no Chromium with its driver on this machine")
    options = selenium.ChromeOptions()
    options.binary_location = browser
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = selenium.Chrome(options=options, service=selenium.ChromeService(program))
    chrome.set_script_timeout(60)
    yield chrome
    chrome.quit()


class Browser:
    """A page in the browser."""

    def __init__(self, driver: Any, path: Path, size: tuple[int, int] = DESK, scheme: str = "light") -> None:
        self._driver = driver
        self._command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        width, height = size
        mobile = size == PHONE
        self._command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )
        driver.get_log("browser"), driver.get_log("performance")
        driver.get("about:blank")
        driver.get(path.as_uri())

    def _command(self, name: str, **words: object) -> None:
        self._driver.execute_cdp_cmd(name, words)

    def do(self, script: str, *words: object) -> Any:
        """Run a script in the page and return its result."""
        return self._driver.execute_script(script, *words)

    def click(self, selector: str) -> None:
        element = self._driver.find_element("css selector", selector)
        self.do("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    def type(self, selector: str, text: str) -> None:
        self._driver.find_element("css selector", selector).send_keys(text)

    def seen(self, selector: str) -> list[str]:
        """The texts of the elements that can be seen."""
        elements = self._driver.find_elements("css selector", selector)
        return [" ".join(element.text.split()) for element in elements if element.is_displayed()]

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self._driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses that the page requested, except its own."""
        messages = [json.loads(entry["message"])["message"] for entry in self._driver.get_log("performance")]
        urls = [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(("file:", "data:", "about:"))]

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return int(self.do("return document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.fixture(scope="module")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that a real run of an example with an error left in its folder."""
    home = tmp_path_factory.mktemp("run")
    shutil.copy(EXAMPLE, home)
    words = [sys.executable, "-m", "traincheck", "run", "-o", "run", EXAMPLE.name, "--epochs", "2"]
    done = subprocess.run(words, cwd=home, capture_output=True, text=True, timeout=300)
    assert done.returncode == 3, done.stderr
    return home / "run" / "report.html"


@pytest.fixture
def judged(some_invariants: tuple[Invariant, ...]) -> list[tuple[Invariant, str]]:
    others = [make_invariant(sentence=f"rule-{number}-of many", relation=f"R{number}") for number in range(30)]
    verdicts = list(zip(some_invariants, (VIOLATED, PASSED, NOT_TRIGGERED, PASSED), strict=True))
    return [*verdicts, *((rule, PASSED) for rule in others)]


@pytest.fixture
def pages(tmp_path: Path, some_report: Report, clean_report: Report, judged: list[tuple[Invariant, str]]) -> Path:
    """A page of three runs with all there may be on it, long names and hostile ones among them."""
    long = "a_module." * 30 + "weight"
    odd = replace(some_report.findings[0], title=HOSTILE, variables=(long, HOSTILE), observed=long)
    other = replace(some_report, findings=(odd, *some_report.findings))
    parts = [
        PageRun(some_report, judged, [sample_details()], "monday"),
        PageRun(clean_report, judged, (), "tuesday"),
        PageRun(other, judged, [sample_details(HOSTILE), sample_details(long)], "a-name-that-is-very-long-" * 4),
    ]
    path = tmp_path / "page.html"
    path.write_text(page_of(parts), encoding="utf-8")
    return path


def test_a_real_run_is_shown_with_its_code_and_pictures(driver: Any, run_page: Path) -> None:
    browser = Browser(driver, run_page)
    assert "Gradients are not cleared between steps" in browser.seen(".title")[0]
    assert "optimizer.step()" in browser.seen(".lines .here")[0]
    words = browser.do("return [...document.querySelectorAll('.history svg[role=img]')].map((one) => one.ariaLabel)")
    assert any("left over in steps 2 to" in text for text in words), words
    assert "Size of the loss" in browser.seen(".curve figcaption")
    assert browser.seen(".bars tbody tr") and "took" in " ".join(browser.seen(".summary-list li"))
    browser.click(".mute summary")
    assert browser.seen(".mute code")[0].startswith("traincheck mute ")
    assert browser.complaints() == [] and browser.requests() == []


def test_the_command_that_mutes_can_be_copied_and_run(driver: Any, run_page: Path) -> None:
    browser = Browser(driver, run_page)
    driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    browser.click(".mute summary")
    browser.click(".mute button.copy")
    driver.execute_cdp_cmd("Page.bringToFront", {})
    copied = driver.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0], (e) => arguments[0](`${e}`))"
    )
    assert copied == browser.seen(".mute code")[0]
    assert browser.do("return document.getElementById('announced').textContent") == "Copied"
    done = subprocess.run(
        ["bash", "-c", copied.replace("traincheck", f"{sys.executable} -m traincheck", 1)],
        cwd=run_page.parent.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_search_and_filter(driver: Any, pages: Path) -> None:
    browser = Browser(driver, pages)
    browser.click("#run1-invariants summary")
    assert len(browser.seen("#run1-rules tr")) == 34
    browser.type("#run1-invariants input[type=search]", "RULE-7-OF many")
    assert len(browser.seen("#run1-rules tr")) == 1
    assert browser.seen("#run1-invariants .shown") == ["1 of 34 shown"]
    driver.find_element("css selector", "#run1-invariants input[type=search]").clear()
    browser.click("#run1-invariants label:has(input[value=violated])")
    assert len(browser.seen("#run1-rules tr")) == 1
    browser.click("#run1-findings label:has(input[value=notice])")
    assert browser.seen("#run1-findings .title") == ["2 The loss is printed no more"]
    assert len(browser.seen("#run3-findings .title")) == 3  # each run has a filter of its own


def test_links_reach_folded_and_filtered_targets(driver: Any, pages: Path) -> None:
    browser = Browser(driver, pages)
    dead = "return [...document.querySelectorAll('a')].filter((a) => !document.getElementById(a.hash.slice(1))).length"
    assert browser.do(dead) == 0
    browser.click("#run1-findings label:has(input[value=notice])")
    browser.click("#shared tbody a")
    assert "changes none" in "".join(browser.seen("article:target .title"))
    browser.click("#run1-finding-1 .behind summary")
    browser.click("#run1-finding-1 .behind a")
    assert browser.seen("#run1-rules tr:target")
    assert browser.do("return document.activeElement.tagName") == "TR"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK])
def test_the_page_fits_and_is_quiet(driver: Any, pages: Path, size: tuple[int, int], scheme: str) -> None:
    browser = Browser(driver, pages, size, scheme)
    browser.do("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert browser.overflow() <= 0
    assert browser.complaints() == [] and browser.requests() == []
    assert browser.do("return document.querySelectorAll('img, iframe, object').length") == 0
    light = browser.do("return getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 249)"
    assert light == (scheme == "light")


CONTRAST = """
const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
const ground = (element) => {
  for (; element; element = element.parentElement) {
    const color = parse(getComputedStyle(element).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
};
const poor = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  const style = getComputedStyle(element);
  if (!walker.currentNode.textContent.trim() || element.closest("svg, script, .aside, .skip, option")) continue;
  if (!style.color.startsWith("rgb") || !element.checkVisibility()) continue;
  const ink = parse(style.color), paper = ground(element);
  if (!paper) continue;
  const [high, low] = [light(ink), light(paper)].sort((a, b) => b - a);
  const ratio = (high + 0.05) / (low + 0.05);
  if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${element.className || element.tagName}`);
}
return [...new Set(poor)];
"""
"""Texts with less contrast than WCAG asks of normal text (AA, 4.5 to 1)."""
NAMELESS = """
const labels = (one) => [...(one.labels || [])].map((each) => each.textContent).join();
const name = (one) => one.ariaLabel || one.textContent || labels(one);
return [...document.querySelectorAll("input, button, a, summary")].filter((one) => !name(one).trim()).length;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast_and_controls_have_names(driver: Any, pages: Path, scheme: str) -> None:
    browser = Browser(driver, pages, DESK, scheme)
    browser.do("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert browser.do(CONTRAST) == []
    controls = "return [...document.querySelectorAll('input, button, a, summary')].map((one) => [one.tagName, "
    controls += (
        "(one.ariaLabel || one.textContent || [...(one.labels || [])].map((l) => l.textContent).join()).trim()])"
    )
    assert [tag for tag, name in browser.do(controls) if not name] == []


def test_the_page_reads_without_its_script(driver: Any, pages: Path) -> None:
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser = Browser(driver, pages)
        assert browser.seen("article .title") and browser.seen("#run1-findings .lines .here")
        assert browser.seen("form") == [] and browser.seen("button") == []
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_page_of_several_run_folders_is_written_by_the_command(
    driver: Any, run_page: Path, tmp_path: Path, clean_report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(clean_report, write_run(tmp_path / "clean", "train.py", training(4)) / "report.json")
    assert main(["report", os.path.relpath(run_page.parent), "clean", "-o", "both.html"]) == 3
    browser = Browser(driver, tmp_path / "both.html")
    assert browser.seen("h1") == ["2 runs side by side"] and browser.seen("#shared td a")
    assert browser.complaints() == [] and browser.requests() == []


@pytest.mark.parametrize(("size", "scheme"), [(PHONE, "dark"), (DESK, "light")])
def test_the_page_of_a_study(driver: Any, tmp_path: Path, size: tuple[int, int], scheme: str) -> None:
    path = tmp_path / "study.html"
    long = study(ranks=2, workload="a_module." * 30 + "py:workload", faults=[HOSTILE])
    long["levels"]["step"]["by_module"][0]["module"] = "layers." * 40 + "weight"
    path.write_text(study_page(long, True), encoding="utf-8")
    browser = Browser(driver, path, size, scheme)
    assert browser.seen("h1") == ["The suspect worker computed otherwise"]
    assert browser.seen("#submodule-kinds tbody th") == ["attention"]
    drawn = "const box = arguments[0].getBBox(); return [box.width, box.height]"
    line = driver.find_elements("css selector", "#step .area path.line")[0]
    width, height = browser.do(drawn, line)
    assert width > 90 and height > 20
    browser.do("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert browser.overflow() <= 0 and browser.do(CONTRAST) == []
    area = driver.find_elements("css selector", "#step .area")[0]
    browser.do("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'}); arguments[0].focus()", area)
    for _ in range(6):
        area.send_keys("\ue014")  # the arrow to the right
    assert "step 6: all gradients 0.000001, the loudest gradient 0.25" in browser.seen("#step .readout")
    assert browser.complaints() == [] and browser.requests() == []
