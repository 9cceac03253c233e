"""What the pages show of an account with 1,000 jobs, one with a log of 100,000 lines; some of it in Chromium."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from estimators.console.server import Console
from tests.estimators.console.conftest import AS_SHOWN, JOBS, LINES, Client

if TYPE_CHECKING:
    from playwright.sync_api import Page


def listed(page: str) -> list[str]:
    return re.findall(r'type="checkbox" name="job" value="([^"]+)"', page)


def lines(client: Client, query: str, job: str = "long") -> dict[str, Any]:
    """What the log says once all of it has been read."""
    deadline = time.monotonic() + 60
    while not (answer := json.loads(client.text(f"/jobs/{job}/lines?{query}")))["is_read"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.slow
def test_the_list_has_each_of_1000_jobs_once_and_comes_fast(client: Client) -> None:
    path, names, seconds = "/", [], []
    while path:
        began = time.process_time()  # console and API run in this process, and other processes may have the cores
        page = client.text(path)
        seconds.append(time.process_time() - began)
        names += listed(page)
        following = re.search(r'rel="next" href="[^"]*?(/\?[^"]+)"', page)
        path = following[1].replace("&amp;", "&") if following else ""
    assert len(names) == len(set(names)) == JOBS
    assert sorted(seconds)[len(seconds) // 2] < 0.2


@pytest.mark.slow
def test_the_list_is_filtered_by_name_and_status(client: Client) -> None:
    assert set(listed(client.text("/?name=many-001"))) == {f"many-001{number}" for number in range(10)}
    assert listed(client.text("/?name=many-001&status=Stopping")) == []
    assert listed(client.text("/?name=many-0011&status=nonsense&within=nonsense")) == ["many-0011"]
    assert listed(client.text("/?name=many-0011&within=hour")) == ["many-0011"]


@pytest.mark.slow
def test_a_log_of_100000_lines_is_read_window_by_window(client: Client) -> None:
    answer = lines(client, "start=-3&count=3")
    assert (answer["total"], answer["dropped"], answer["start"]) == (LINES, 0, LINES - 3)
    assert [text for *_, text in answer["lines"]][:2] == [f"line {LINES - 2} of many", f"line {LINES - 1} of many"]
    found = lines(client, "start=0&count=5&search=LINE+77&host=algo-1")
    assert found["total"] == 100 + 1000  # 77xx and 77xxx; lines below 1,001 say something else
    assert found["lines"][0][0] == 7700
    assert len(lines(client, "start=0&count=99999999")["lines"]) <= 400
    assert lines(client, "start=0&count=5&host=algo-9")["total"] == 0


@pytest.mark.slow
def test_a_line_can_neither_control_nor_change_what_shows_it(client: Client) -> None:
    text = lines(client, "start=-1&count=1")["lines"][0][-1]
    assert text == AS_SHOWN  # as text: the page puts it in as such
    assert client.ask("/jobs/long/lines?start=-1").headers["Content-Type"] == "application/json"
    assert client.ask("/jobs/long/log.txt").headers["Content-Type"] == "text/plain; charset=utf-8"
    page = client.ask("/?name=%22%3E%3Cscript%3E")
    assert b"<script>" not in page.data and b'value="&#34;&gt;&lt;script&gt;"' in page.data


def test_a_job_has_a_chart_of_its_metric(client: Client) -> None:
    lines(client, "")
    page = client.text("/jobs/long")
    assert re.findall(r'aria-label="([^"]+) over step"', page) == ["test:dcg"]
    points = re.search(r'<polyline class="line colour-0" points="([^"]+)"', page)
    assert points and 500 < len(points[1].split()) <= 600  # of 1,000


def test_no_page_holds_a_secret(client: Client) -> None:
    pages = [client.text(f"/{path}") for path in ("jobs/long", "jobs/long/request", "compare?job=long&job=other")]
    for page in pages:
        assert "api_key" in page and "••••••" in page
        assert not any(secret in page for secret in ("sk-1234", "hunter2"))
    assert "max_tokens" in pages[2]


def test_jobs_are_compared_on_one_chart_and_by_what_differs(client: Client) -> None:
    lines(client, "")
    lines(client, "", job="other")
    page = client.text("/compare?job=long&job=other")
    assert page.count('<svg class="chart"') == 1
    assert re.findall(r'polyline class="line colour-(\d)"', page) == ["0", "1"]
    differing = re.findall(r'<tr class="differs"><th scope="row">([^<]+)', page)
    assert differing == ["lr", "api_key", "config", "max_tokens", "ResourceConfig.InstanceType"]
    assert client.ask("/compare?job=long").status == 400


def test_what_is_not_there_is_said(client: Client) -> None:
    for path, status in (("/jobs/nobody", 404), ("/jobs/-no-name-", 404), ("/jobs/%2e%2e", 404), ("/none", 404)):
        answer = client.ask(path)
        assert (answer.status, answer.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
    assert "keeps no checkpoints" in client.text("/jobs/long/checkpoints")
    assert client.ask("/jobs/long/stop", "POST", Origin=client.origin).status == 404  # the console may not write


@pytest.fixture
def page(console: Console) -> Iterator[Page]:
    """A browser's page on the list of jobs; at the end nothing was refused by the page's own policy."""
    from playwright.sync_api import expect

    from tests.chromium import chromium

    expect.set_options(timeout=30_000)
    complaints: list[str] = []
    with chromium() as browser:
        page = browser.new_page(color_scheme="dark", viewport={"width": 1000, "height": 700})
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(console.link)
        page.wait_for_selector("table.jobs")  # the link's own page goes to the list by itself
        page.wait_for_load_state("load")  # the list's style sheet too
        yield page
        assert complaints == []


@pytest.mark.browser
@pytest.mark.slow
def test_from_the_list_to_a_line_of_a_log_by_keyboard(page: Page) -> None:
    from playwright.sync_api import expect

    root = page.url
    assert "token" not in root and page.locator("tbody tr").count() == 50
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    page.keyboard.press("/")
    page.keyboard.type("long")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("text=long").last.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("svg.chart polyline")
    page.locator("svg.chart").hover()
    expect(page.locator(".readout")).to_have_text(re.compile("^step "))

    page.goto(f"{root}jobs/long/log")
    last = page.locator(".log-line").last
    expect(page.locator("#log-count")).to_have_text(f"{LINES:,} lines")
    expect(last.locator(".log-number")).to_have_text(str(LINES))  # it follows
    assert last.locator("span").last.inner_text() == AS_SHOWN  # as text
    page.locator("#log").focus()
    page.keyboard.press("Home")
    expect(page.locator(".log-number").first).to_have_text("1")
    assert page.locator(".log-line").count() < 400
    page.keyboard.press("/")
    page.keyboard.type("LINE 77777 ")
    expect(page.locator("#log-count")).to_have_text("1 found")
    assert page.locator("mark").inner_text() == "line 77777 "


@pytest.mark.browser
@pytest.mark.slow
def test_a_small_screen_needs_no_scrolling_to_the_side(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    root = page.url
    for path in ("", "jobs/long", "jobs/long/request", "compare?job=long&job=other"):
        page.goto(f"{root}{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
