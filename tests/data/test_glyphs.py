"""The embedded data set: which characters, and how they look."""

import unicodedata
from collections import Counter
from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
import PIL
import pytest
import torch
from fontTools.ttLib import TTFont

from pml_nivmf.data import Glyphs
from pml_nivmf.data.glyphs import CHARACTERS, FONTS, load_fonts, render

from .fakes import stacked


@pytest.fixture(scope="module")
def splits():
    return Glyphs()


def fonts_by_character():
    return {c: fonts for part in CHARACTERS.values() for fonts, group in part.items() for c in group}


def test_characters_are_letters_and_digits_that_the_fonts_contain():
    train, test = ("".join(part.values()) for part in CHARACTERS.values())
    assert (len(FONTS), len(train), len(test)) == (16, 369, 187)
    assert len(set(train + test)) == 369 + 187
    assert all(unicodedata.name(c).startswith(("LATIN", "DIGIT")) for c in train)
    assert all(unicodedata.name(c).startswith(("GREEK", "CYRILLIC")) for c in test)
    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    contents = {name: TTFont(folder / f"{name}.ttf", lazy=True).getBestCmap() for name in FONTS}
    assert all(ord(c) in contents[name] for c, names in fonts_by_character().items() for name in names)


def test_no_two_characters_look_alike():
    """Fewer than a quarter of the bitmaps in their common fonts are equal."""
    names_of, equal = fonts_by_character(), Counter()
    for name, font in load_fonts(40).items():
        alike = {}
        for character in (character for character, names in names_of.items() if name in names):
            mask = font.getmask(character, mode="L")
            assert any(mask), f"{character} is blank"
            alike.setdefault((mask.size, bytes(mask)), []).append(character)
        equal.update(pair for group in alike.values() for pair in combinations(group, 2))
    for (one, other), count in equal.items():
        assert count < len(set(names_of[one]) & set(names_of[other])) / 4, f"{one} and {other}"


def test_parts(splits):
    assert splits.num_classes == 277
    assert splits.input_shape == (1, 32, 32)
    for part, count in ((splits.train, 277), (splits.train_plain, 277), (splits.validation, 92), (splits.test, 187)):
        assert torch.equal(torch.bincount(part.labels), torch.full((count,), 16))


@pytest.mark.skipif(PIL.__version__ != "13.0.0", reason="other versions of Pillow may draw other pixels")
def test_images_are_those_that_results_were_computed_with(splits):
    """A weighted sum that changes with the order of the items and with their pixels."""
    sums = []
    for drawn in map(stacked, (splits.train_plain, splits.validation, splits.test)):
        item, row, column = (torch.linspace(0, 1, size, dtype=torch.double) for size in (len(drawn), 32, 32))
        sums.append(torch.einsum("ichw,i,h,w->", drawn.double(), item, row, column.square()).item() / len(drawn))
    assert sums == pytest.approx([4.4458230751, 4.0338219429, 5.3966824976], abs=1e-6)


def test_images_show_bright_ink_within_the_frame(splits):
    drawn = stacked(splits.test)
    assert (drawn.flatten(1).amax(1) > 0.5).all()  # none is blank
    border = torch.cat([drawn[..., 0, :], drawn[..., -1, :], drawn[..., 0], drawn[..., -1]], dim=-1)
    assert (border.flatten(1).amax(1) > 0.5).float().mean() < 0.005  # hardly any is cut off


def test_maps_differ_between_instances_and_not_with_other_classes():
    groups = {("DejaVuSans",): "A"}
    moved, other = (render(groups, 32, 6, seed)[0] for seed in (0, 1))
    assert len({image.tobytes() for image in (*moved, *other)}) == 12
    assert np.array_equal(render({FONTS: "0", **groups}, 32, 6, 0)[1], moved)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 4}, "size must be an integer of at least 8, got 4"),
        ({"seed": -3}, "seed must be an integer of at least 0, got -3"),
    ],
)
def test_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Glyphs(**arguments)
