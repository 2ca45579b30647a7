"""Draw the collections of docs/gallery.md, sort them, and picture their reports: python docs/gallery.py FOLDER docs"""

import csv
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from picture import save, take
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SIDE, SCALE = 32, 4  # pixels of an image, and how much larger it is drawn
LABELLED = 0.5  # share of the images of known kinds
COLOURS, LIMIT = 256, 200_000  # of the palette of a picture; bytes
Colour = tuple[int, int, int]
Points = list[tuple[float, float]]


def letter(kind: str, random: np.random.Generator) -> Image.Image:
    """One letter in a font of matplotlib's, tilted, in the ink and on the paper of an old print."""
    fonts = ["DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSansMono", "STIXGeneral"]
    file = Path(mpl.get_data_path()) / "fonts" / "ttf" / f"{random.choice(fonts)}.ttf"
    ink, paper = _colour(random, (50, 40, 40), 25), _colour(random, (225, 212, 185), 15)
    image = Image.new("RGB", (SIDE * SCALE, SIDE * SCALE), paper)
    font = ImageFont.truetype(str(file), int(random.uniform(0.62, 0.8) * SIDE * SCALE))
    middle = (SIDE * SCALE / 2 + random.normal(0, 5), SIDE * SCALE / 2 + random.normal(0, 5))
    ImageDraw.Draw(image).text(middle, kind, font=font, fill=ink, anchor="mm")
    return image.rotate(random.normal(0, 5), resample=Image.Resampling.BICUBIC, fillcolor=paper)


def leaf(kind: str, random: np.random.Generator) -> Image.Image:
    """One leaf: its outline in polar coordinates around its middle, pointing up, tilted."""
    outlines: dict[str, Callable[[float], float]] = {
        "round": lambda angle: 0.8,
        "narrow": lambda angle: 0.23 / math.sqrt(1 - (0.965 * math.cos(angle)) ** 2),
        "heart": lambda angle: 0.8 * (0.55 + 0.45 * abs(math.cos(angle / 2)) - 0.45 * (math.cos(angle) < -0.85)),
        "lobed": lambda angle: 0.62 + 0.24 * math.cos(5 * angle),
        "toothed": lambda angle: 0.66 + 0.11 * ((angle * 9 / math.pi) % 1),
        "three": lambda angle: 0.16 + 0.68 * abs(math.cos(1.5 * angle)),
    }
    green, paper = _colour(random, (70, 120, 50), 22), _colour(random, (236, 236, 228), 8)
    tilt, size = random.normal(0, 0.25), random.uniform(0.8, 1.05)
    angles = np.linspace(-math.pi, math.pi, 121)
    outline = _around(
        [(angle, size * outlines[kind](float(angle)) * (1 + random.normal(0, 0.02))) for angle in angles], tilt
    )
    image = Image.new("RGB", (SIDE * SCALE, SIDE * SCALE), paper)
    draw = ImageDraw.Draw(image)
    dark = tuple(int(0.6 * part) for part in green)
    draw.line([*_around([(math.pi, 0.98), (0.0, 0.1)], tilt)], fill=dark, width=SCALE)
    draw.polygon(outline, fill=green)
    draw.line(_around([(math.pi, 0.6), (0.0, 0.6 * size)], tilt), fill=dark, width=SCALE // 2)
    return image


def plankton(kind: str, random: np.random.Generator) -> Image.Image:
    """One creature as a microscope shows it: dark on grey, turned any way, a little out of focus."""
    image = Image.new("RGB", (SIDE * SCALE, SIDE * SCALE), _colour(random, (196, 200, 204), 10))
    draw, dark = ImageDraw.Draw(image), _colour(random, (70, 72, 80), 20)
    turn, size = random.uniform(0, 2 * math.pi), random.uniform(0.75, 1.0)
    if kind == "disc":
        draw.polygon(_around([(a, 0.7 * size) for a in np.linspace(0, 6.28, 40)], turn), outline=dark, width=2 * SCALE)
        draw.polygon(_around([(a, 0.25 * size) for a in np.linspace(0, 6.28, 40)], turn), fill=dark)
    elif kind == "chain":
        for place in np.linspace(-0.75, 0.75, 5) * size:
            x, y = _around([(0.0 if place > 0 else math.pi, abs(place))], turn)[0]
            draw.ellipse((x - 11, y - 11, x + 11, y + 11), fill=dark)
    elif kind == "star":
        for spine in range(8):
            draw.line(_around([(0.0, 0.0), (spine * math.pi / 4, 0.85 * size)], turn), fill=dark, width=SCALE)
        draw.polygon(_around([(a, 0.3 * size) for a in np.linspace(0, 6.28, 20)], turn), fill=dark)
    elif kind == "needle":
        draw.line(_around([(math.pi, 0.9 * size), (0.0, 0.9 * size)], turn), fill=dark, width=2 * SCALE)
    elif kind == "spiral":
        arm = [(a, size * (0.08 + 0.055 * a)) for a in np.linspace(0, 4.4 * math.pi, 90)]
        draw.line(_around(arm, turn), fill=dark, width=2 * SCALE)
    else:  # a crescent
        out = [(a, 0.75 * size) for a in np.linspace(-1.7, 1.7, 30)]
        draw.polygon(_around(out + [(a, 0.45 * size) for a in np.linspace(1.2, -1.2, 30)], turn), fill=dark)
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.5, 4.0)))


COLLECTIONS: dict[str, tuple[Callable[[str, np.random.Generator], Image.Image], list[str], int]] = {
    "letters": (letter, [*"ABEGHKMRSTXZ"], 60),
    "leaves": (leaf, ["heart", "lobed", "narrow", "round", "three", "toothed"], 100),
    "plankton": (plankton, ["chain", "crescent", "disc", "needle", "spiral", "star"], 100),
}


def write(name: str, folder: Path) -> None:
    """Draw a collection; the first half of its kinds is known. The table has their labels, and the truth."""
    draw, kinds, count = COLLECTIONS[name]
    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    rows = []
    for number, kind in enumerate(np.repeat(kinds, count)):
        image = draw(str(kind), random).resize((SIDE, SIDE), Image.Resampling.BOX)
        pixels = np.asarray(image) + random.normal(0, 6, (SIDE, SIDE, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number:04}.png")
        known = kinds.index(str(kind)) < len(kinds) // 2 and random.random() < LABELLED
        rows.append([f"{number:04}.png", str(kind) if known else "", str(kind)])
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["file_name", "label", "truth"], *rows])


def main(folder: Path, out: Path) -> None:
    for name in COLLECTIONS:
        if not (folder / name).exists():
            write(name, folder / name)
        words = ["discover", str(folder / name), "--labels", str(folder / name / "labels.csv"), "--backbone", "convnet"]
        subprocess.run([sys.executable, "-m", "sortal", *words, "--out", str(folder / f"{name}-run")], check=True)
        report = take(folder / f"{name}-run" / "report.html")
        save(report, out / f"gallery-{name}.png", COLOURS, LIMIT)


def _colour(random: np.random.Generator, about: Colour, spread: float) -> Colour:
    shade = random.normal(0, spread)
    red, green, blue = (int(np.clip(part + shade + random.normal(0, spread / 3), 0, 255)) for part in about)
    return red, green, blue


def _around(polar: list[tuple[float, float]], turn: float) -> Points:
    """Points of a drawing from angles, clockwise from the top, and distances from its middle in halves of its side."""
    half = SIDE * SCALE / 2
    return [(half + half * far * math.sin(a + turn), half - half * far * math.cos(a + turn)) for a, far in polar]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
