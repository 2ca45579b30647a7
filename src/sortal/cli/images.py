"""The commands on images before any run: check and sample."""

import json as jsonlib
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sortal.cli import printing
from sortal.cli.options import Flat, Images, Json, Labelled, Labels, Workers, source_of
from sortal.config import MAX_PIXELS, Reading
from sortal.system.text import plain

CHECK_EXAMPLES = """\
Examples:
  sortal check photos
  sortal check photos --labels labels.csv --unlisted unlabelled
  sortal check photos --json > report.json
"""
SAMPLE_EXAMPLES = """\
Examples:
  sortal sample digits OUT
  sortal check OUT --labels OUT/labels.csv
"""


def check(
    images: Images,
    *,
    labels: Labels = None,
    reading: Annotated[Reading, Flat] = Reading(),
    tiny: Annotated[int, Parameter(help="Report images whose shorter side has fewer pixels.")] = 32,
    max_pixels: Annotated[int, Parameter(help="Refuse images with more pixels.")] = MAX_PIXELS,
    workers: Workers = None,
    json: Json = False,
) -> int:
    """Check a folder of images before training on it.

    Reads every image once and changes nothing. Reports images per class,
    files that cannot be read, duplicates (first those with two labels, or both
    labelled and unlabelled), near-duplicates, tiny, rotated and 16-bit images.

    Each folder in IMAGES is a class, except the one named unlabelled; loose
    files are unlabelled too. With a table, folders have no meaning.

    Exit codes: 0 all images can be used; 1 an image has two labels; 2 bad usage
    or input; 3 some files cannot be read.
    """
    from sortal.images.check import check
    from sortal.images.reading import read_images

    with printing.runtime("Finding images", workers=workers) as runtime:
        found = read_images(source_of(images), labels=labels, need_labels=False, **asdict(reading))
        health = check(found, tiny=tiny, max_pixels=max_pixels, runtime=runtime)
    print(jsonlib.dumps(asdict(health), indent=2)) if json else printing.health(health, tiny)
    return 1 if health.contradictions else 3 if health.unreadable else 0


def sample(
    name: Annotated[Literal["digits"], Parameter(help="The sample.")],
    out: Annotated[Path, Parameter(help="Folder to write; it must be new or empty.")],
    *,
    labelled: Labelled = 0.5,
    seed: Annotated[int, Parameter(help="Seed for choosing the labelled images.")] = 0,
) -> None:
    """Write a built-in sample as image files and a table of labels.

    The digits are 1,797 real handwritten ones, 8 by 8 pixels. Half of the
    images of 0 to 4 are labelled in labels.csv; its column truth has every class.
    """
    from sortal.images.datasets.digits import TABLE, write

    images = write(out, labelled=labelled, seed=seed)
    print(f"Wrote {len(images):,} images and {TABLE} to {plain(out)}. Check them with:")
    print(f"  {shlex.join(['sortal', 'check', plain(out), '--labels', plain(out / TABLE)])}")
