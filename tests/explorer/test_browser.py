"""Tests of the explorer in a browser: every feature, at desktop and phone size, without errors in the console.

Playwright controls the Chromium of the system; without either of them the tests are skipped. The package
axe-playwright-python contains axe-core, which checks accessibility.
"""

from __future__ import annotations

import io
import re
import shutil
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from matplotlib.image import imread as read_image

from explorer_data import HTML, build_matrix, make_guessing_set, make_sets, make_table_set, make_vectors, with_maps
from swivel.corpus.vocabulary import Vocabulary
from swivel.explorer.maps import make_map
from swivel.explorer.queries import VectorSet
from swivel.explorer.server import listen, make_server, name_url, warm
from swivel.vectors import Vectors, VectorTable

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
FLAGS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]  # WebGL without a graphics card
TIMEOUT_MILLISECONDS = 30_000  # long, because the machine may be busy
expect = playwright.expect
expect.set_options(timeout=TIMEOUT_MILLISECONDS)


def serve(sets: Any) -> Iterator[str]:
    """Run a server in a thread and yield its URL."""
    with listen("127.0.0.1", 0) as listener:
        # In the order of `server.serve`: FastAPI and the maps' thread must not both change the filters of warnings.
        server = make_server(sets, "127.0.0.1")
        warm(sets)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield name_url(listener)
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serve(make_sets(build_matrix(tmp_path_factory.mktemp("browser") / "matrix")))


@pytest.fixture(scope="module")
def two() -> Iterator[str]:
    yield from serve(make_sets(two=True))


@pytest.fixture(scope="module")
def banded() -> Iterator[str]:
    vectors = make_vectors()
    assert vectors.columns is not None
    labels = [f"right 2-10:{token}" for token in vectors.vocabulary]
    columns = VectorTable(Vocabulary(labels), vectors.columns)
    yield from serve(with_maps([VectorSet("banded", Vectors(vectors.row_table, columns, columns_per_row=1))]))


@pytest.fixture(scope="module")
def table() -> Iterator[str]:
    yield from serve([make_table_set()])


@pytest.fixture(scope="module")
def guessing() -> Iterator[str]:
    yield from serve([make_guessing_set()])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


class Watched:
    """A page that records console messages, errors, dialogs and requests to other hosts in `wrong`."""

    def __init__(self, browser: Browser, **settings: Any) -> None:
        self.context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **settings})
        self.context.set_default_timeout(TIMEOUT_MILLISECONDS)
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text) if message.type != "log" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        self.page.on("request", self._check_origin)

    def _check_origin(self, request: Any) -> None:
        if not re.match(r"http://127\.0\.0\.1:\d+/|data:", request.url):
            self.wrong.append(f"requested {request.url}")

    def open(self, address: str, **state: str) -> Page:
        self.page.goto(f"{address}?{urlencode(state)}")
        self.page.wait_for_selector("#results h2", state="attached")
        return self.page


@pytest.fixture
def desktop(browser: Browser) -> Iterator[Watched]:
    watched = Watched(browser)
    yield watched
    watched.context.close()
    assert watched.wrong == []


@pytest.fixture
def phone(browser: Browser) -> Iterator[Watched]:
    watched = Watched(browser, viewport=PHONE, has_touch=True, is_mobile=True)
    yield watched
    watched.context.close()
    assert watched.wrong == []


def words(page: Page) -> list[str]:
    return page.locator("#results tbody th .word").all_inner_texts()


def wait_for_map(page: Page) -> None:
    page.wait_for_selector(".map-tools input[value=umap]:checked", state="attached")
    page.wait_for_selector(".legend tbody tr", state="attached")


def test_a_word_can_be_searched_with_the_keyboard_alone(desktop: Watched, one: str) -> None:
    page = desktop.open(one)
    page.keyboard.press("/")
    page.keyboard.type("gui")
    expect(page.locator("[role=option]")).to_have_count(2)

    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.locator("[role=option][aria-selected=true] .token")).to_have_text("guitars")

    page.keyboard.press("Enter")
    expect(page.locator("h2.title")).to_have_text("guitars")
    assert "q=guitars" in page.url

    page.keyboard.press("/")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.press("ArrowDown")  # from the search field to the first answer
    expect(page.locator("#results tbody a.word").first).to_be_focused()

    page.keyboard.press("ArrowDown")
    second = words(page)[1]
    page.keyboard.press("Enter")
    expect(page.locator("h2.title")).to_have_text(second)


def test_neighbors_have_bars_counts_and_ranks(desktop: Watched, one: str) -> None:
    page = desktop.open(one, q="word20", n="10")
    assert len(words(page)) == 10
    assert page.locator("#results thead th").all_inner_texts() == ["word", "similarity", "count", "rank"]
    widths = page.locator("#results .fill").evaluate_all("all => all.map(each => parseFloat(each.style.width))")
    assert widths == sorted(widths, reverse=True) and 0 < widths[0] <= 100
    page.locator("#results select").select_option("50")
    expect(page.locator("#results tbody tr")).to_have_count(50)
    assert "n=50" in page.url


def test_views_switch_between_w_c_and_their_sum(desktop: Watched, one: str) -> None:
    page = desktop.open(one, q="word20")
    shown = page.locator("#results tbody tr").first.inner_text()
    page.locator("#views input[value=c]").check()
    expect(page).to_have_url(re.compile("view=c"))
    expect(page.locator("#results tbody tr").first).not_to_have_text(shown)
    page.locator("h2.title").click()
    page.keyboard.press("v")
    expect(page.locator("#views input:checked")).to_have_value("w+c")


def test_columns_have_scores_and_counts(desktop: Watched, one: str) -> None:
    page = desktop.open(one, q="king")
    page.locator("input[value=columns]").check()
    expect(page.locator("#results thead th")).to_have_text(["column", "score (PMI)", "together", "rank"])
    row = page.locator("#results tbody tr", has=page.locator("th", has_text="queen"))
    expect(row.locator("td").nth(1)).to_have_text("7")


def test_an_unknown_word_shows_similar_spellings(desktop: Watched, one: str) -> None:
    page = desktop.open(one, q="giutar")
    expect(page.get_by_role("alert")).to_contain_text("not among the 300 words")
    page.get_by_role("alert").get_by_role("link", name="Guitar", exact=True).click()
    expect(page.locator("h2.title")).to_have_text("Guitar")


@pytest.mark.parametrize(
    ("state", "unknown", "corrected"),
    [
        ({"q": "giutar", "tab": "map"}, "giutar", {"q": "Guitar", "tab": "map"}),
        ({"q": "word20 - giutar"}, "giutar", {"q": "word20 - Guitar"}),
        ({"tab": "compare", "a": "king", "b": "giutar"}, "giutar", {"a": "king", "b": "Guitar", "tab": "compare"}),
    ],
)
def test_a_similar_spelling_takes_the_place_of_the_unknown_word(
    desktop: Watched, one: str, state: dict[str, str], unknown: str, corrected: dict[str, str]
) -> None:
    page = desktop.open(one, **state)
    alert = page.locator("[role=alert]:visible")
    expect(alert).to_contain_text(f"'{unknown}' is not among the 300 words")
    alert.get_by_role("link", name="Guitar", exact=True).click()
    expect(page.locator("[role=alert]")).to_have_count(0)
    assert {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()} == corrected


def test_an_unknown_word_is_guessed_from_its_spelling(desktop: Watched, guessing: str) -> None:
    page = desktop.open(guessing, q="balazzzz", n="10")
    page.get_by_role("link", name="Guess its neighbors from its spelling").click()
    expect(page.locator(".heading")).to_contain_text("a guess from the spelling, with an expected cosine of")
    assert {word[:4] for word in words(page)} == {"bala"}
    page.goto(f"{guessing}?{urlencode({'q': 'balazzzz', 'tab': 'map'})}")
    expect(page.locator("#card")).to_contain_text("is not among")
    page.get_by_role("link", name="Guess its neighbors from its spelling").click()
    expect(page.locator("#card h3")).to_have_text("balazzzz")


def test_answers_may_be_restricted_to_frequent_words(desktop: Watched, guessing: str, one: str) -> None:
    page = desktop.open(guessing, q="balazzzz", guess="1", n="200")
    rare = page.locator("#results td.rank", has_text=re.compile("^1,(0(?!00)|1)"))
    expect(rare).not_to_have_count(0)
    page.get_by_label("Among").select_option("1000")
    expect(rare).to_have_count(0)
    assert len(words(page)) == 200 and "restrict_vocab=1000" in page.url
    expect(desktop.open(one, q="king").get_by_label("Among")).to_have_count(0)  # of 300 words


def test_labels_with_html_are_text(desktop: Watched, one: str) -> None:
    page = desktop.open(one, q=HTML, n="200")
    expect(page.locator("h2.title")).to_have_text(HTML)
    page.goto(f"{one}?{urlencode({'q': 'word4', 'n': '200'})}")
    expect(page.locator("#results .word", has_text=HTML)).to_have_count(1)
    page.fill("#query", "<img")
    expect(page.locator("[role=option] .token").first).to_have_text(HTML)
    assert page.locator("#results img, [role=option] img").count() == 0


def test_analogies_show_their_arithmetic(desktop: Watched, one: str) -> None:
    page = desktop.open(one, tab="analogy")
    page.fill("#analogy-a", "man")
    page.fill("#analogy-b", "king")
    page.fill("#analogy-c", "woman")
    page.keyboard.press("Enter")
    expect(page.locator(".equation")).to_have_text("king − man + woman ≈ queen")
    expect(page.locator(".arithmetic li")).to_have_count(3)

    text = page.locator(".arithmetic code").inner_text()
    left, _, right = text.replace("−", "-").replace("÷", "/").replace("\u2009", "").partition("=")
    assert eval(left) == pytest.approx(float(right), abs=0.005)

    page.locator("input[value='3cosmul']").check()
    expect(page.locator(".arithmetic code")).to_contain_text("×")
    assert page.locator(".equation").inner_text().endswith("queen")


def test_the_comparison_starts_with_examples(desktop: Watched, one: str) -> None:
    page = desktop.open(one, tab="compare")
    example = page.locator("#results a.chip").first
    pair = example.inner_text().split(", ")
    example.click()
    expect(page.locator(".verdict .equation")).to_contain_text(f"cos({', '.join(pair)}) =")


def test_columns_say_where_a_word_stood(desktop: Watched, banded: str) -> None:
    page = desktop.open(banded, q="king", list="columns", n="200")
    row = page.locator("#results tbody tr", has=page.locator("[title='right 2-10:queen']"))
    expect(row.locator("th a.word")).to_have_text("queen")
    expect(row.locator("th small")).to_have_text("2 to 10 words after")


def test_a_table_has_rows_columns_and_recommendations(desktop: Watched, table: str) -> None:
    page = desktop.open(table)
    tabs = page.locator("[role=tab]:visible")
    expect(tabs).to_have_text(["Neighbors", "Recommend", "Compare", "Map"])
    for key in "1234":  # No page of a table speaks of words.
        page.keyboard.press(key)
        expect(tabs.nth(int(key) - 1)).to_have_attribute("aria-selected", "true")
        page.wait_for_selector("#results:not([aria-busy])", state="attached")
        assert not re.search(r"\bwords?\b", page.locator("body").inner_text(), re.IGNORECASE)
        assert "king - man" not in page.content()

    page.keyboard.press("2")
    page.fill("#recommend-row", "row4")
    page.keyboard.press("Enter")
    expect(page.locator("#results tbody tr").first).to_contain_text("item4")
    expect(page.locator("#results thead th")).to_have_text(["column", "because of", "score"])

    page.locator("#results tbody th a").first.click()  # a column has columns as neighbors
    expect(page.locator("#views input:checked")).to_have_value("c")
    expect(page.locator("h2.title")).to_have_text("item4")
    expect(page.locator("#results thead th").first).to_have_text("column")


def test_a_basket_of_columns_is_filled_and_emptied(desktop: Watched, table: str) -> None:
    page = desktop.open(table, tab="recommend")
    for column in ("item1", "item3"):
        page.fill("#recommend-column", column)
        page.get_by_role("button", name="Recommend").click()
        expect(page.locator(".basket .chip").last).to_contain_text(column)
    expect(page.locator("#results tbody th", has_text="item3")).to_have_count(0)
    page.get_by_role("link", name="Remove item3").click()
    expect(page.locator(".basket .chip")).to_have_count(1)
    expect(page.locator("#results tbody th", has_text="item3")).to_have_count(1)
    page.get_by_role("link", name="Remove item1").click()
    expect(page.locator("#results .welcome")).to_be_visible()


def test_tabs_that_make_no_sense_are_left_out(desktop: Watched, table: str, one: str) -> None:
    expect(desktop.open(table, tab="analogy").locator(".unknown")).to_contain_text("tab=analogy")
    expect(desktop.open(one, tab="recommend").locator(".unknown")).to_contain_text("tab=recommend")


def test_keys_after_escape_do_not_type_into_the_search(desktop: Watched, one: str) -> None:
    page = desktop.open(one, q="word20")
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    expect(page.get_by_role("tab", name="Analogy")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#query")).to_have_value("word20")

    page.keyboard.press("/")
    page.keyboard.type("gui")
    expect(page.locator("[role=option]")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator("[role=option]:visible")).to_have_count(0)
    page.keyboard.press("Escape")
    page.keyboard.press("3")
    expect(page.get_by_role("tab", name="Compare")).to_have_attribute("aria-selected", "true")
    assert "3" not in page.locator("#query").input_value()


def test_labels_on_the_map_are_not_cut_at_the_edge(desktop: Watched, one: str) -> None:
    record = """
      window.written = [];
      const write = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
        const { width } = this.measureText(text);
        const ratio = this.getTransform().a;
        window.written.push([x, x + width, y, this.canvas.width / ratio, this.canvas.height / ratio]);
        return write.call(this, text, x, y);
      };
    """
    desktop.page.add_init_script(record)
    page = desktop.open(one, tab="map", at="900,0,6000")
    wait_for_map(page)
    for at in ("900,0,6000", "0,900,6000", "300,300,3000", ""):
        page.goto(f"{one}?{urlencode({'tab': 'map', 'at': at})}")
        wait_for_map(page)
        page.wait_for_timeout(200)
        written = page.evaluate("window.written")
        assert written
        for left, right, middle, width, height in written:
            assert left >= 0 and right <= width and 0 < middle < height


def test_two_words_are_compared(desktop: Watched, one: str) -> None:
    page = desktop.open(one, tab="compare", a="word6", b="word12")
    expect(page.locator(".verdict .equation")).to_contain_text("cos(word6, word12) =")
    expect(page.get_by_role("heading", name="Near both")).to_be_visible()
    expect(page.get_by_role("heading", name="Near word6 only")).to_be_visible()
    expect(page.get_by_role("table", name="Columns they go with").locator("thead th")).to_have_text(
        ["column", "word6", "together", "word12", "together"]
    )


def test_every_state_has_a_link_and_back_works(desktop: Watched, one: str) -> None:
    page = desktop.open(one, q="word20")
    first = words(page)[0]
    page.locator("#results a.word").first.click()
    expect(page.locator("h2.title")).to_have_text(first)

    page.get_by_role("tab", name="Compare").click()
    expect(page.locator("h2.title")).to_have_text("Compare")

    page.go_back()
    expect(page.locator("h2.title")).to_have_text(first)

    page.go_back()
    expect(page.locator("h2.title")).to_have_text("word20")

    page.go_forward()
    expect(page.locator("h2.title")).to_have_text(first)

    page.reload()
    expect(page.locator("h2.title")).to_have_text(first)


def test_the_map_can_zoom_move_color_and_select(desktop: Watched, one: str) -> None:
    page = desktop.open(one, tab="map")
    wait_for_map(page)
    page.locator(".frame").focus()
    for key in ("+", "+", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
    expect(page).to_have_url(re.compile(r"at=-\d+%2C[1-9]\d*%2C19\d\d"))

    url_before = page.url
    page.locator("input[value=frequency]").check()
    expect(page).to_have_url(re.compile("color=frequency"))

    page.locator("input[value=pca]").check()
    expect(page).to_have_url(re.compile("layout=pca"))

    page.locator(".frame").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#card h3")).not_to_be_empty()
    assert re.search("at=[^&]+", url_before).group() in page.url  # type: ignore[union-attr]

    page.get_by_role("link", name="Show word").click()
    expect(page.locator("h2.title")).to_be_visible()


def test_a_click_on_a_point_shows_its_word(desktop: Watched, one: str) -> None:
    page = desktop.open(one)
    wait_for_map(page)
    box = page.locator(".frame").bounding_box()
    assert box

    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -400)
    expect(page).to_have_url(re.compile("at="))

    before = page.url
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 - 80, box["y"] + box["height"] / 2, steps=3)
    page.mouse.up()
    expect(page).not_to_have_url(before)

    page.locator(".frame").focus()
    page.keyboard.press("0")
    expect(page).not_to_have_url(re.compile("at="))

    radius = min(box["width"], box["height"]) / 2.15
    is_on_map = page.evaluate(
        "async (at) => { const [x, y] = at; return document.elementFromPoint(x, y).closest('.frame') !== null }",
        [box["x"] + box["width"] / 2 + 0.7 * radius, box["y"] + box["height"] / 2],
    )
    assert is_on_map

    for step in range(24):  # The points are on a circle, in place of UMAP.
        page.mouse.click(box["x"] + box["width"] / 2 + (0.6 + step / 50) * radius, box["y"] + box["height"] / 2)
        if "q=" in page.url:
            break
    expect(page.locator("h2.title")).to_have_text(re.compile("."))
    assert "q=" in page.url


def test_the_words_of_the_map_are_available_as_text(desktop: Watched, one: str) -> None:
    page = desktop.open(one, tab="map")
    wait_for_map(page)
    page.get_by_text("Clusters", exact=True).click()
    clusters = page.get_by_role("table", name="Clusters of the map").locator("tbody tr")
    assert 6 <= clusters.count() <= 8  # six groups of words, and four words that are in none
    page.get_by_text("Words in view", exact=True).click()
    expect(page.locator(".inview li").first).to_be_visible()
    expect(page.locator("#words-0")).to_contain_text("The most common words in view:")


def test_the_map_can_be_colored_by_classes(browser: Browser) -> None:
    sets = make_sets()
    for view in sets[0].views.values():
        view.map.classes = {"king": "person", "queen": "person", "Guitar": "<b>thing"}
    for address in serve(sets):
        watched = Watched(browser)
        page = watched.open(address, tab="map")
        wait_for_map(page)
        page.get_by_text("Classes", exact=True).click()
        rows = page.get_by_role("table", name="Classes of the map").locator("tbody tr")
        expect(rows.locator("th")).to_have_text(["person", "<b>thing", "no class"])
        expect(page.locator(".map-tools label", has_text="Class")).to_be_visible()
        watched.context.close()
        assert watched.wrong == []


def count_colored(page: Page) -> int:
    """Return the number of pixels of points on the right side of the map."""
    size: Any = page.viewport_size
    width, height = size["width"], size["height"]
    clip: Any = {"x": 0.5 * width, "y": 120, "width": 0.5 * width, "height": height - 120}
    pixels = read_image(io.BytesIO(page.screenshot(clip=clip)))[:, :, :3]
    return int((pixels.max(axis=2) - pixels.min(axis=2) > 0.2).sum())


@pytest.mark.parametrize("size", [(1400, 720), (1280, 640)])
def test_opening_the_clusters_keeps_the_points(browser: Browser, one: str, size: tuple[int, int]) -> None:
    watched = Watched(browser, viewport={"width": size[0], "height": size[1]})
    page = watched.open(one, tab="map")
    wait_for_map(page)
    page.mouse.move(0, 0)
    page.wait_for_timeout(100)
    before = count_colored(page)
    page.get_by_text("Clusters", exact=True).click()
    page.wait_for_timeout(100)
    assert count_colored(page) == pytest.approx(before, rel=0.1)
    assert before > 1_000
    watched.context.close()
    assert watched.wrong == []


def find_place(page: Page) -> list[float]:
    """Return x, y and zoom of the map: a step to the right and back writes them into the address."""
    page.locator(".frame").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    expect(page).to_have_url(re.compile("at="))
    return [float(value) / 1000 for value in parse_qs(urlsplit(page.url).query)["at"][0].split(",")]


def test_the_map_moves_to_the_chosen_word(desktop: Watched, one: str) -> None:
    page = desktop.open(one, q="word20")
    wait_for_map(page)
    x, y, zoom = find_place(page)
    assert (x, y) != (0, 0)
    assert zoom >= 1

    page.locator("#results a.word").first.click()
    expect(page).not_to_have_url(re.compile("at="))
    page.wait_for_selector("#results:not([aria-busy])", state="attached")
    assert find_place(page)[:2] != [x, y]


def test_a_link_that_says_where_to_look_is_followed(desktop: Watched, one: str) -> None:
    page = desktop.open(one, q="word20", at="250,-125,3000")
    wait_for_map(page)
    assert find_place(page) == pytest.approx([0.25, -0.125, 3], abs=0.01)


def test_the_analogy_tab_starts_with_examples(desktop: Watched, one: str) -> None:
    page = desktop.open(one, tab="analogy")
    page.get_by_role("link", name="man : king = woman : ?").click()
    expect(page.locator(".equation")).to_have_text("king − man + woman ≈ queen")


def test_a_bad_link_to_the_map_says_so_there(desktop: Watched, one: str) -> None:
    page = desktop.open(one, tab="map", color="red")
    expect(page.locator("#card .unknown")).to_contain_text("color=red")
    expect(page.locator("#card")).to_be_visible()


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ({"tab": "wrod", "n": "7", "q": "word20"}, "tab=wrod, n=7"),
        ({"view": "u", "color": "red"}, "color=red, view=u"),
        ({"at": "1,2", "colour": "frequency"}, "at=1,2, colour=frequency"),
    ],
)
def test_a_link_with_unknown_values_says_so(desktop: Watched, one: str, state: dict[str, str], named: str) -> None:
    page = desktop.open(one, **state)
    expect(page.locator(".unknown")).to_contain_text(named)
    page.locator("#results a").first.click()
    expect(page.locator(".unknown")).to_have_count(0)


def test_long_labels_are_cut(desktop: Watched, one: str) -> None:
    page = desktop.open(one, q="word4", n="200")
    cell = page.locator("#results tbody th", has_text=HTML)
    box = cell.bounding_box()
    assert box and box["height"] < 45
    assert cell.locator("a").get_attribute("title") == HTML


def test_a_phone_shows_no_keys(phone: Watched, one: str) -> None:
    page = phone.open(one)
    assert page.locator("kbd:visible").count() == 0
    page.locator("#help-button").tap()
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_role("dialog")).to_contain_text("cosine")
    assert page.locator("kbd:visible").count() == 0


def test_a_shared_map_works_from_a_file(browser: Browser, tmp_path: Path) -> None:
    make_map(make_vectors(columns=False), layout="pca", title="Shared").save(tmp_path / "map.html")
    watched = Watched(browser)
    page = watched.page
    page.goto((tmp_path / "map.html").as_uri())
    expect(page.get_by_role("heading", name="Shared")).to_be_visible()
    assert count_colored(page) > 500

    page.fill("#word", "quee")
    page.keyboard.press("Enter")
    expect(page.locator("#word")).to_have_value("queen")
    page.fill("#word", "zzz")
    page.keyboard.press("Enter")
    expect(page.locator("#answer")).to_contain_text("zzz is not among the 300 words")
    page.get_by_text("Clusters", exact=True).click()
    assert 6 <= page.locator("#clusters li").count() <= 8
    watched.context.close()
    assert [each for each in watched.wrong if not each.startswith("requested file:")] == []


def test_two_sets_are_side_by_side(desktop: Watched, two: str) -> None:
    page = desktop.open(two, q="word20")
    expect(page.locator("#results .list")).to_have_count(2)
    expect(page.locator("#results .set")).to_have_text(["first", "second"])

    boxes = [each.bounding_box() for each in page.locator("#results .list").all()]
    assert boxes[0] and boxes[1] and boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]

    lists = [each.locator("tbody a.word").all_inner_texts() for each in page.locator("#results .list").all()]
    expect(page.locator("#results tr.shared")).to_have_count(2 * len(set(lists[0]) & set(lists[1])))
    expect(page.locator(".map")).to_have_count(2)

    page.get_by_role("tab", name="Analogy").click()
    page.goto(f"{two}?tab=analogy&a=man&b=king&c=woman")
    expect(page.locator(".equation")).to_have_count(2)


def test_light_and_dark_follow_the_system_and_the_switch(browser: Browser, one: str) -> None:
    watched = Watched(browser, color_scheme="dark")
    page = watched.open(one)
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.keyboard.press("t")
    light = page.evaluate(background)
    assert dark != light

    page.reload()
    page.wait_for_selector("#results h2")
    assert page.evaluate(background) == light

    watched.context.close()
    assert watched.wrong == []


def test_help_opens_and_closes_with_keys(desktop: Watched, one: str) -> None:
    page = desktop.open(one)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()

    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).not_to_be_visible()

    page.keyboard.press("2")
    expect(page.get_by_role("tab", name="Analogy")).to_have_attribute("aria-selected", "true")

    page.get_by_role("tab", name="Analogy").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Compare")).to_be_focused()


@pytest.mark.parametrize(
    "state", [{"q": "word20"}, {"tab": "map", "q": "word20"}, {"tab": "compare", "a": "king", "b": "man"}]
)
def test_the_page_fits_on_a_phone(phone: Watched, one: str, state: dict[str, str]) -> None:
    page = phone.open(one, **state)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert page.locator(".panel").is_visible() is (state.get("tab") != "map")
    if state.get("tab") == "map":
        wait_for_map(page)
        page.locator("#card .primary").tap()
        expect(page.locator("h2.title")).to_be_visible()


def test_two_sets_are_one_below_the_other_on_a_phone(phone: Watched, two: str) -> None:
    page = phone.open(two, q="word20")
    boxes = [each.bounding_box() for each in page.locator("#results .list").all()]
    assert boxes[0] and boxes[1] and boxes[0]["y"] < boxes[1]["y"]
    assert page.evaluate("document.getElementById('results').scrollWidth") <= PHONE["width"]


STATES: list[dict[str, str]] = [
    {},
    {"q": "word20", "n": "10"},
    {"q": "king", "list": "columns", "n": "10"},
    {"q": "giutar"},
    {"tab": "analogy", "a": "man", "b": "king", "c": "woman", "n": "10"},
    {"tab": "compare", "a": "word6", "b": "word12", "n": "10"},
    {"tab": "map", "q": "word20"},
    {"tab": "map", "q": "giutar"},
    {"tab": "compare"},
]
TABLE_STATES: list[dict[str, str]] = [
    {},
    {"tab": "recommend"},
    {"tab": "recommend", "q": "row4"},
    {"tab": "recommend", "basket": "item1\nitem3"},
]


# A usual run tests each theme and each size once; the other combinations are slow tests.
@pytest.mark.parametrize(
    ("size", "theme"),
    [
        ("desktop", "light"),
        ("phone", "dark"),
        pytest.param("desktop", "dark", marks=pytest.mark.slow),
        pytest.param("phone", "light", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("kind", "states"), [("one", STATES), ("table", TABLE_STATES)])
def test_axe_finds_no_violations(
    browser: Browser,
    request: pytest.FixtureRequest,
    kind: str,
    states: list[dict[str, str]],
    theme: str,
    size: str,
) -> None:
    bundled = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    source = (Path(str(files(bundled.__name__))) / "axe.min.js").read_text(encoding="utf-8")
    watched = Watched(browser, color_scheme=theme, viewport=DESKTOP if size == "desktop" else PHONE)
    violations = []
    page = watched.open(request.getfixturevalue(kind))
    page.wait_for_selector(".legend tbody tr", state="attached")
    page.evaluate(f"{source}; undefined")  # not as a script of the page, which the content security policy blocks
    for state in states:
        follow = "search => { history.pushState(null, '', search); dispatchEvent(new Event('popstate')) }"
        page.evaluate(follow, f"?{urlencode(state)}")
        page.wait_for_selector("#results:not([aria-busy])", state="attached")
        result = page.evaluate("axe.run({ resultTypes: ['violations'] })")
        violations += [
            f"{state}: {wrong['id']}: {node['html'][:120]}: {node['failureSummary']}"
            for wrong in result["violations"]
            for node in wrong["nodes"]
        ]
    watched.context.close()
    assert violations == []
    assert watched.wrong == []
