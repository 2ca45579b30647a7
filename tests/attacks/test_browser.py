"""Hostile text in a browser: nothing in it is executed or loaded, and the layout of report and review holds.

Pages report every violation of their policy to a collector, which a stricter policy joins that only reports.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from support.payloads import CODE, CONTROLS, ELSEWHERE, LONG, MARKUP, PATHS, draw, is_name
from support.reviews import Client, saved_run, serving, session_of
from support.sample_run import QUICK, sample_run
from support.stores import small_store
from support.world import Trial

from sortal.discovery.reviewing.advice import Advice
from sortal.images.decoding import Quarantined
from sortal.runs.facts import ImageSource
from sortal.web.app.guard import ANSWER_HEADERS, POLICY
from sortal.web.report.report import make_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request, Route

LOOKS = (((1280, 900), False), ((360, 740), True), ((1280, 900), True), ((760, 900), False))  # sizes, and dark or not
# Collects in the page itself, before any script of it.
COLLECTOR = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample} ${event.sourceFile}`);
});
"""
STRICTER = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
STRICTER += "require-trusted-types-for 'script'; trusted-types 'none'; base-uri 'none'; form-action 'none'"
HIT = "() => [window.hit, document.querySelectorAll('iframe, object, embed, base, form[action]').length]"
WIDTH = """() => [document.scrollingElement.scrollWidth, innerWidth, [...document.querySelectorAll("main *")]
  .filter((each) => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
  .map((each) => each.outerHTML.slice(0, 60)).slice(-5)]"""


@dataclass
class Watched:
    """A page, and what happened in it that must not."""

    page: Page
    origin: str  # of the only requests that are allowed
    events: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Fail if text was executed or loaded, if only the policy prevented that, or if the page is too wide."""
        assert self.page.evaluate(HIT) == [None, 0]
        wide, window, elements = self.page.evaluate(WIDTH)
        assert wide <= window, f"The page is {wide} pixels wide, in a window of {window}: {elements}"
        assert self.page.evaluate("() => window.violations") == []
        assert self.events == []


def watch(browser: Browser, origin: str, look: tuple[tuple[int, int], bool], policy: str = "") -> Watched:
    """Open an empty page and record what happens in it; documents also get a report-only `policy`."""
    (width, height), dark = look
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    context.add_init_script(COLLECTOR)
    page = context.new_page()
    page.set_default_timeout(60_000)
    watched = Watched(page, origin)
    noted = watched.events.append

    def asked(request: Request) -> None:
        if not request.url.startswith((origin, "blob:", "data:")):
            noted(f"request: {request.url[:200]}")

    def with_policy(route: Route) -> None:
        answer = route.fetch(max_redirects=0)
        headers = {**answer.headers, "content-security-policy-report-only": policy}
        route.fulfill(response=answer, headers=headers)

    page.on("console", lambda m: None if m.text.startswith("Failed to load resource") else noted(f"console: {m.text}"))
    page.on("pageerror", lambda error: noted(f"error: {error}"))
    page.on("dialog", lambda dialog: noted(f"dialog: {dialog.message}"))
    page.on("popup", lambda popup: noted(f"popup: {popup.url}"))
    page.on("request", asked)
    if policy:
        page.route(f"{origin}/", with_policy)
    return watched


def _texts(trial: Trial) -> list[str]:
    """Return names for ten categories: markup first, then everything."""
    at = trial.number
    first = [MARKUP[(7 * at + number) % len(MARKUP)] for number in range(5)]
    rest = [LONG[at % len(LONG)], CONTROLS[at % len(CONTROLS)], CODE[at % len(CODE)], PATHS[at % len(PATHS)]]
    return [*dict.fromkeys([*filter(is_name, (*first, *rest)), *draw(trial.random, 12, at=at, fits=is_name)])][:12]


# The report


@pytest.mark.attack(most=24)
def test_report(trial: Trial, browser: Browser) -> None:
    """Look at every part of a report whose texts are all hostile."""
    texts = _texts(trial)
    n = len(texts)
    run = sample_run(
        categories=n,
        known=7,
        images=14 * n,
        name=lambda number: texts[number],
        file=lambda row: f"{texts[row % n]}/{texts[row % 5]}{row}",
        quarantine=[Quarantined(text, "damaged", text) for text in texts],
        candidates=2,
    )
    source = ImageSource(folder=str(trial.folder / texts[0]), images=14 * n, paths={})
    facts = replace(
        run.facts,
        images=(source,),
        notes=tuple(texts),
        command="\n".join(texts),
        weights=texts[1],
        device=texts[2],
        machine=texts[3],
        versions=dict(zip(texts, reversed(texts), strict=True)),
        finished=texts[4],
    )
    path = trial.folder / "report.html"
    path.write_bytes(make_report(replace(run, facts=facts, folder=trial.folder), small_store(14 * n, 16), QUICK))
    watched = watch(browser, "file://", trial.case(LOOKS))
    watched.page.goto(path.as_uri())
    policy = watched.page.locator("meta[http-equiv]").get_attribute("content")
    assert policy is not None
    assert "require-trusted-types-for 'script'" in policy
    _walk_report(watched.page, texts)
    watched.check()
    watched.page.context.close()


def _walk_report(page: Page, texts: list[str]) -> None:
    """Use every control of a report."""
    assert page.locator("#cards article").count() == len(texts)
    for control in page.locator("#filter button, #colour button, .zoom button").all():
        control.click()
    page.locator('[data-filter="all"]').click()
    for order in ("size", "name", "new"):
        page.locator("#sort").select_option(order)
    for text in texts[:4]:
        page.locator("#search").fill(text[:300])
    page.locator("#search").fill("")
    page.locator("summary").click()
    page.locator("#cards .whole").first.click()
    page.locator("#all-images .thumb").first.click()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.locator("#viewer-map").click()
    page.locator('[data-colour="category"]').click()
    for button in page.locator("#legend button").all()[:4]:
        button.click()
    page.locator("#lit a").click()
    page.evaluate("() => document.querySelector('.stage').scrollIntoView({ block: 'center' })")
    box = page.locator("#canvas").bounding_box()
    assert box is not None
    for at in range(6):
        x, y = page.evaluate("(at) => theMap.places()[at]", at)
        page.mouse.move(box["x"] + x, box["y"] + y)
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")


# The review


@pytest.mark.attack(most=24)
def test_review(trial: Trial, browser: Browser) -> None:
    """Look at every page of a review whose texts are all hostile, and decide things about them."""
    texts = _texts(trial)
    n = len(texts)
    run = saved_run(
        trial.folder / "run",
        images=6 * n,
        categories=n,
        known=5,
        name=lambda number: texts[number],
        file=lambda row: f"{texts[row % n]}/{texts[row % 5]}{row}",
    )
    session = session_of(run)
    assert isinstance(session.advisor, Advice)
    session.advisor = replace(session.advisor, words=tuple(texts))
    with serving(session) as client:
        watched = watch(browser, client.origin, trial.case(LOOKS), STRICTER)
        watched.page.goto(client.server.link())
        watched.page.wait_for_selector(".tiles-of a")
        assert watched.page.locator(".tiles-of h3").count() == n
        _walk_review(watched, client, texts)
        watched.page.context.close()


def _walk_review(watched: Watched, client: Client, texts: list[str]) -> None:
    """Open every page and every dialog of a review, and give hostile names."""
    page = watched.page
    paths = ("/", "/next", "/next/1", "/category/6", "/split/6", "/pair/4/5", "/map", "/image/3", "/refit")
    for path in (*paths, "/<img src=x onerror='window.hit=1'>", "/category/javascript:window.hit=1"):
        page.goto(f"{client.origin}/#{path}")
        page.wait_for_function("() => document.querySelector('main > :not(.state), main > .state')")
        page.wait_for_load_state("networkidle")
        watched.check()
    page.goto(f"{client.origin}/#/category/6")
    page.wait_for_selector(".cell img")
    for key, typed in (("r", "<img src=y onerror=window.hit=2>"), ("g", ""), ("p", texts[1][:100])):
        page.keyboard.press(key)
        page.wait_for_selector("#names[open]")
        page.locator("#name").fill(typed)
        watched.check()
        if key == "r":
            page.keyboard.press("Enter")
            page.wait_for_function("() => !document.getElementById('toast').hidden")
        else:
            page.keyboard.press("Escape")
    page.keyboard.press("A")
    page.wait_for_selector("#ask[open]")
    watched.check()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('toast').textContent.includes('Confirmed all')")
    page.keyboard.press("Control+z")
    page.wait_for_function("() => document.getElementById('toast').textContent.includes('Undid')")
    page.keyboard.press("?")
    page.wait_for_selector("#help[open]")
    watched.check()


@pytest.mark.attack(most=1)
@pytest.mark.parametrize(
    ("body", "script"),
    [
        ("<script>window.hit = 1</script>", "() => 0"),
        ("<p>", "() => { document.querySelector('p').innerHTML = '<b>x</b>' }"),
        (f"<img src={ELSEWHERE}/x.png>", "() => 0"),
        ("<p style='width: 9000px'>x", "() => 0"),
    ],
)
def test_what_the_collector_tells(trial: Trial, browser: Browser, body: str, script: str) -> None:
    """Break a page on purpose: the collector must notice, or its silence elsewhere would prove nothing."""
    page = trial.folder / "page.html"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{STRICTER}">'
    page.write_text(f"<!doctype html>{meta}<body>{body}")
    watched = watch(browser, "file://", LOOKS[0])
    watched.page.goto(page.as_uri())
    from playwright.sync_api import Error

    with suppress(Error):
        watched.page.evaluate(script)
    with pytest.raises(AssertionError):
        watched.check()
    watched.page.context.close()


def test_the_review_is_as_strict_as_the_collector() -> None:
    assert "require-trusted-types-for 'script'" in ANSWER_HEADERS["Content-Security-Policy"] == POLICY
