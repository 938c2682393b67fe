"""Which characters the text fonts that ship with matplotlib can draw, and which of them look like classes of their own.

Training classes are Latin letters (IPA among them) and digits, test classes Greek and Cyrillic letters. A character
that looks like an earlier one (Greek Α and Latin A, Đ and Ð) is left out: a label no eye can tell would be noise, and
a test class that was trained on would not be unseen.
"""

import unicodedata
from collections import Counter
from pathlib import Path

from PIL import ImageFont

FONTS = (
    *(
        f"DejaVu{family}{style}"
        for family in ("Sans", "SansMono")
        for style in ("", "-Bold", "-Oblique", "-BoldOblique")
    ),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
)
TRAIN_RANGE, TRAIN_NAMES = range(0x30, 0x2B0), ("LATIN", "DIGIT")
TEST_RANGE, TEST_NAMES = range(0x370, 0x530), ("GREEK", "CYRILLIC")
TRAIN_FONTS = len(FONTS)  # a training class is in every font
TEST_FONTS = 12  # a test class in all of DejaVu at least
TEST_CLASSES = 187
LOOK_ALIKE_SHARE = 0.25  # of the fonts that have both; a lone coincidence, as of italic и and u, makes no pair
COMPARED_AT = 40  # font size in pixels at which two characters are compared


def font_files() -> dict[str, Path]:
    """Name -> file of the 16 fonts, in a fixed order."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError('Glyphs draws with matplotlib\'s fonts: pip install "pml_nivmf[benchmark]"') from error
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files = {name: folder / f"{name}.ttf" for name in FONTS}
    missing = [str(file) for file in files.values() if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"Glyphs: matplotlib lacks the font {missing[0]}: reinstall it with pip")
    return files


def characters() -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """(training, test) characters, each with the names of the fonts that draw it, in the order of their code points."""
    fonts = _fonts_by_character(font_files())
    seen = _Looks()
    latin = {c: fonts[c] for c in _candidates(fonts, TRAIN_RANGE, TRAIN_NAMES, TRAIN_FONTS) if seen.is_new(c, fonts[c])}
    others = [c for c in _candidates(fonts, TEST_RANGE, TEST_NAMES, TEST_FONTS) if seen.is_new(c, fonts[c])]
    best = sorted(others, key=lambda c: -len(fonts[c]))[:TEST_CLASSES]  # a stable sort: ties stay in order
    return latin, {c: fonts[c] for c in sorted(best)}


def load_font(file: Path, pixels: int) -> ImageFont.FreeTypeFont:
    """With Pillow's own layout: the result must not depend on whether libraqm is installed."""
    return ImageFont.truetype(str(file), pixels, layout_engine=ImageFont.Layout.BASIC)


def _fonts_by_character(files: dict[str, Path]) -> dict[str, tuple[str, ...]]:
    from fontTools.ttLib import TTFont

    fonts: dict[str, tuple[str, ...]] = {}
    for name, file in files.items():
        with TTFont(file, lazy=True) as font:
            for code in font.getBestCmap():
                fonts[chr(code)] = (*fonts.get(chr(code), ()), name)
    return fonts


def _candidates(fonts: dict[str, tuple[str, ...]], codes: range, names: tuple[str, ...], at_least: int) -> list[str]:
    """Letters and digits of a script; modifier letters (Lm), which are little more than marks, are not among them."""
    return [
        c
        for c in map(chr, codes)
        if len(fonts.get(c, ())) >= at_least
        and unicodedata.category(c) in ("Lu", "Ll", "Lt", "Lo", "Nd")
        and unicodedata.name(c, "").startswith(names)
    ]


class _Looks:
    """The bitmaps met so far: a character is new if it has ink and shares few of its bitmaps with any before it."""

    def __init__(self) -> None:
        self.fonts = {name: load_font(file, COMPARED_AT) for name, file in font_files().items()}
        self.owners: dict[tuple[str, tuple[int, int], bytes], list[str]] = {}
        self.drawn_by: dict[str, set[str]] = {}

    def is_new(self, character: str, names: tuple[str, ...]) -> bool:
        masks = {name: self.fonts[name].getmask(character, mode="L") for name in names}
        looks = [(name, mask.size, bytes(mask)) for name, mask in masks.items()]
        same = Counter(owner for look in looks for owner in self.owners.get(look, ()))
        for look in looks:
            self.owners.setdefault(look, []).append(character)
        self.drawn_by[character] = set(names)
        blank = not all(any(pixels) for _, _, pixels in looks)
        return not blank and not any(self._alike(character, owner, count) for owner, count in same.items())

    def _alike(self, character: str, owner: str, same: int) -> bool:
        return same >= LOOK_ALIKE_SHARE * len(self.drawn_by[character] & self.drawn_by[owner])
