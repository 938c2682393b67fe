"""Glyphs, the embedded data set: characters in matplotlib's text fonts, rendered in seconds, without a download."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from ..checks import check_count
from .images import grey_splits
from .splits import DataSplits, Source

_STYLES = {
    "DejaVuSans": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSerif": ("", "-Bold", "-Italic", "-BoldItalic"),
    "STIXGeneral": ("", "Bol", "Italic", "BolIta"),
}
FONTS = tuple(family + style for family, styles in _STYLES.items() for style in styles)  # all are part of matplotlib
_DEJAVU = tuple(name for name in FONTS if name.startswith("DejaVu"))
_PROPORTIONAL = tuple(name for name in FONTS if "Mono" not in name)

# Fonts -> the letters and digits that they can draw. If characters look alike in a quarter of their fonts or more
# (Ð and Đ, Latin A and Greek Α), only the first is used: the others would be label noise, or not unseen in the test.
CHARACTERS = {
    "train": {
        FONTS: (
            "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñò"
            "óôõöøùúûüýþÿĀāĂăĄąĆćĈĉĊċČčĎďđĒēĔĕĖėĘęĚěĜĝĞğĠġĢģĤĥĦħĨĩĪīĬĭĮįİıĲĳĴĵĶķĸĹĺĻļĽľĿŀŁłŃńŅņŇňŉŊŋŌōŎŏŐőŒœŔŕŖŗŘřŚśŜŝŞşŠšŢţŤ"
            "ťŦŧŨũŪūŬŭŮůŰűŲųŴŵŶŷŸŹźŻżŽžſƀƈƐƒƕƙƚƛƞƠơƥƪƫƭƯưƺƻƾǀǁǂǃǼǽǾǿȷɐɑɒɓɔɕɖɗɘəɚɛɜɝɞɟɠɡɢɣɤɥɦɧɨɩɪɫɬɭɮɯɰɱɲɳɴɵɶɷɸɹɺɻɼɽɾɿʀʁʂʃʄʅʆʇ"
            "ʈʉʊʋʌʍʎʏʐʑʒʓʔʕʖʗʘʙʚʛʜʝʞʟʠʡʢʣʤʥʦʧʨ"
        )
    },
    "test": {
        FONTS: (
            "ΆΈΉΊΌΎΏΐΓΔΘΛΞΠΣΦΨΩάέήίΰαβγδζθιλμνξπρςστυφχψωϊϋόύώϐϑϒϖϘϙϚϛϝϞϟϠϡϰϱϴϵЂЃЄЉЊЋЌЎЏБДЖИЙЛУФЦЧШЩЪЫЬЭЮЯбгджзийлмптфцчшщъыь"
            "эюяђѓљњћќўџѢѣҐґ"
        ),
        _DEJAVU: "ϓϔϗϺϻϼϽϾϿЍѝҒғҔҕҖҗҘҙҚқҢңҤҥҬҭүҰұҲҳҺӁӂӃӄӇӈӋӌӘӚӛӜӝӞӟӠӢӣӤӥӪӫӬ",
        _PROPORTIONAL: "ѪѫѴѵ",
    },
}

OVERSAMPLING = 2  # glyphs are drawn larger and averaged, for soft edges
FONT_SIZE = 0.62  # relative to the image
LARGEST_GLYPH = 0.84  # relative to the image, before the affine map; wider glyphs (Ǆ) are shrunk
ROTATION, SHEAR, SCALE, SHIFT = 0.14, 0.12, 0.1, 0.05  # ± radians, slope, share, share of the image


def Glyphs(  # noqa: N802  named like a class in configs
    size: int = 32, instances: int = 16, shift: int = 2, validation_share: float = 0.25, seed: int = 0
) -> DataSplits:
    """369 Latin letters and digits for training and validation, 187 unseen Greek and Cyrillic letters for testing.

    A class is a character. Images are float32 in [0, 1], (1, size, size), bright ink on a dark background.

    size: height and width of the images, at least 8.
    instances: images of each character. They cycle through the 16 fonts.
    shift: training images are also shifted by up to this many pixels.
    seed: fixes the affine maps and the validation classes.
    """
    check_count("size", size, at_least=8)
    check_count("instances", instances, at_least=2)  # retrieval needs a second image
    check_count("seed", seed, at_least=0)
    train, test = (_source(part, size, instances, seed) for part in ("train", "test"))
    return grey_splits(train, test, shift, validation_share, seed)


@cache  # other data sets of this process, such as that of another loss, use the same images
def _source(part: str, size: int, instances: int, seed: int) -> Source:
    """The rendered characters (1, size, size), ordered by class."""
    images = torch.from_numpy(render(CHARACTERS[part], size, instances, seed))
    labels = torch.arange(len(images)).repeat_interleave(instances)
    return Source(images.reshape(len(labels), 1, size, size), labels)


def load_fonts(pixels: int) -> dict[str, ImageFont.FreeTypeFont]:
    """All fonts, with Pillow's basic layout, so that images do not depend on whether libraqm is installed."""
    import matplotlib

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    layout = ImageFont.Layout.BASIC
    return {name: ImageFont.truetype(str(folder / f"{name}.ttf"), pixels, layout_engine=layout) for name in FONTS}


def render(groups: dict[tuple[str, ...], str], size: int, instances: int, seed: int) -> np.ndarray:
    """Bytes (characters, instances, size, size), in the order of the code points.

    groups: names of fonts -> characters. The instances of a character cycle through its fonts.
    """
    fonts = load_fonts(round(FONT_SIZE * size * OVERSAMPLING))
    characters = sorted((character, names) for names, group in groups.items() for character in group)
    images = np.zeros((len(characters), instances, size, size), dtype=np.uint8)
    for row, (character, names) in zip(images, characters, strict=True):
        stamps = {name: _stamp(character, fonts[name]) for name in names}
        for i in range(instances):
            # The seed contains the character itself, so that an image does not depend on the other characters.
            map_parameters = np.random.default_rng([seed, ord(character), i]).uniform(-1, 1, size=5)
            row[i] = np.asarray(_draw(stamps[names[i % len(names)]], size, map_parameters))
    return images


def _stamp(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    """The glyph with a dark border of one pixel."""
    left, top, right, bottom = font.getbbox(character)
    stamp = Image.new("L", (int(right - left) + 2, int(bottom - top) + 2))
    ImageDraw.Draw(stamp).text((1 - left, 1 - top), character, fill=255, font=font)
    return stamp


def _draw(stamp: Image.Image, size: int, map_parameters: np.ndarray) -> Image.Image:
    """The stamp in the middle of the image, rotated, sheared, scaled and shifted by the 5 parameters."""
    side = size * OVERSAMPLING
    angle, shear, scale = ROTATION * map_parameters[0], SHEAR * map_parameters[1], 1 + SCALE * map_parameters[2]
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    fit = min(1.0, LARGEST_GLYPH * side / max(stamp.size))
    forward = scale * fit * rotation @ np.array([[1.0, shear], [0.0, 1.0]])  # stamp -> image, about the centres
    inverse = np.linalg.inv(forward)
    centre = side / 2 + side * SHIFT * map_parameters[3:]
    offset = np.array(stamp.size) / 2 - inverse @ centre
    data = (inverse[0, 0], inverse[0, 1], offset[0], inverse[1, 0], inverse[1, 1], offset[1])
    image = stamp.transform((side, side), Image.Transform.AFFINE, data, resample=Image.Resampling.BILINEAR)
    return image.reduce(OVERSAMPLING)
