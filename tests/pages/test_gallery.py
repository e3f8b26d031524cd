"""The pictures of the gallery: each page draws the one it shows, and it reads on light and on dark pages."""

import re
from pathlib import Path

import pytest

from foedus.app.report.plots import COLOURS, GREY

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
PAGES = sorted(GALLERY.glob("*.md"))


def contrast(one: str, other: str) -> float:
    """The ratio of brightness of two colours, as the accessibility guidelines (WCAG 2) define it."""

    def brightness(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([brightness(one), brightness(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", [GREY, *COLOURS])
def test_colours_stand_out_from_a_light_and_from_a_dark_page(colour):
    assert contrast(colour, "#ffffff") > 3.0
    assert contrast(colour, "#1e2129") > 3.0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_page_ends_in_the_picture_that_its_code_draws(page):
    text = page.read_text(encoding="utf-8")
    name = f"{page.stem}.svg"
    assert f'figure.savefig("{name}"' in text
    assert re.search(rf"!\[[^\]]{{20,}}\]\({re.escape(name)}\)\s*$", text), "the picture comes last, with words for it"
    svg = (GALLERY / name).read_text(encoding="utf-8")
    colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg))
    assert colours <= {GREY, *COLOURS}, colours
    assert "<text" in svg  # words stay words: they can be searched and read aloud


def test_there_are_seven_stories():
    assert len(PAGES) == 7
