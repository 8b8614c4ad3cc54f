"""Pages in a real browser: nothing is fetched, nothing overflows, and pointing at a token shows its figures."""

import os
import shutil
from pathlib import Path

import pytest

from sage_trl.compare import run as compare
from sage_trl.eval import run as evaluate
from sage_trl.guide import run

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    named = os.environ.get("CHROMIUM")
    chromium = named or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no chromium: install it, or name one in CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api").sync_playwright().start()
    # Without its sandbox, which root cannot have; it opens pages of this project alone
    browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    yield browser
    browser.close()
    playwright.stop()


@pytest.fixture(scope="module")
def guide_page(tmp_path_factory):
    page, before = tmp_path_factory.mktemp("page") / "guide.html", os.getcwd()
    os.chdir(ROOT)
    run(["--config", "recipes/countdown/sage_token.yaml", "--num_prompts", "3", "--output", str(page)])
    os.chdir(before)
    return page


@pytest.fixture(scope="module")
def comparison_page(tmp_path_factory):
    root = tmp_path_factory.mktemp("comparison")
    arguments = ["--model", str(ROOT / "examples/countdown/model"), "--benchmarks", "countdown", "--n", "4"]
    arguments += ["--num_problems", "5", "--max_completion_length", "12"]
    for seed in (0, 1):
        evaluate([*arguments, "--seed", str(seed), "--output_dir", str(root / f"seed{seed}")])
    compare([f"first={root / 'seed0'}", f"second={root / 'seed1'}", "--output", str(root / "report")])
    return root / "report" / "index.html"


@pytest.fixture(
    params=[("light", 380), ("light", 1200), ("dark", 380), ("dark", 1200)],
    ids=lambda param: "-".join(map(str, param)),
)
def visit(request, browser):
    """Opens a page at one width in one scheme, and sees to it that nothing is fetched, overflows or goes wrong."""
    scheme, width = request.param
    context, mistakes = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}), []

    def visit(path):
        page, requests = context.new_page(), []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: mistakes.append(message.text))
        page.on("pageerror", lambda error: mistakes.append(str(error)))
        page.goto(path.as_uri())
        assert requests == [path.as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        return page

    yield visit, scheme, width
    context.close()
    assert mistakes == []


def test_a_comparison_s_page(visit, comparison_page):
    visit, scheme, width = visit
    page = visit(comparison_page)
    assert page.locator("figure svg").count() == 3
    assert page.locator("table").count() == 2 and "second against first" in page.inner_text("body")
    for svg in page.locator("figure svg").all():
        assert 100 < svg.bounding_box()["width"] <= width


def test_a_guide_s_page(visit, guide_page):
    visit, scheme, width = visit
    page = visit(guide_page)
    assert page.locator("figure svg").count() == 3
    ground, text = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    dark = lambda colour: sum(map(int, colour[4:-1].split(","))) < 3 * 128  # noqa: E731
    assert dark(ground) == (scheme == "dark") and dark(text) != dark(ground)

    tip, token = page.locator("#tip"), page.locator(".tokens .u").first
    assert not tip.is_visible()
    for token in (page.locator(".tokens span").first, page.locator(".tokens .u").first):
        token.scroll_into_view_if_needed()
        token.hover()
        assert tip.is_visible()
        figures = dict(line.rsplit(maxsplit=1) for line in tip.inner_text().splitlines())
        assert {"surprisal", "entropy", "q", "log q"} <= set(figures)
        assert token.get_attribute("data-t").split()[-2] == figures["q"]
        box = tip.bounding_box()
        assert 0 <= box["x"] and box["x"] + box["width"] <= width
    # A touched token is seen: its background is not the page's
    assert token.evaluate("token => getComputedStyle(token).backgroundColor") not in (ground, "rgba(0, 0, 0, 0)")
    page.locator("h1").hover()
    assert not tip.is_visible()
