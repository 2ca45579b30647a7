"""Thumbnails: whole images, as large as their room allows."""

import io

import numpy as np
from PIL import Image
from support.stores import small_store, store_of

from sortal.images.store import pixel_store
from sortal.web.report import thumbnails


def test_a_thumbnail_shows_the_whole_image_and_enlarges_a_tiny_one_by_whole_pixels() -> None:
    assert pixel_store.fit(np.zeros((50, 200, 3), dtype=np.uint8), 100).shape == (25, 100, 3)
    assert pixel_store.fit(np.zeros((1, 900, 3), dtype=np.uint8), 30).shape == (1, 30, 3)
    dots = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    large = pixel_store.fit(dots, 5)
    assert large.shape == (4, 4, 3)
    assert (large[:2, 2:] == dots[0, 1]).all()


def test_sheets_show_the_images_of_the_store_smaller_if_there_is_less_room() -> None:
    """Tiny images are shown pixel by pixel, each in its cell; a row without pixels has none."""
    images = [np.full((3, 5, 3), value, dtype=np.uint8) for value in range(0, 250, 10)]
    store = store_of(images)
    store.heights[7] = store.widths[7] = 0
    made = thumbnails.make_sheets(store, [*range(25)], room=10**6, cells=(32, 192))
    assert made is not None
    assert made.crisp
    assert [at for at, size in enumerate(made.sizes) if size != (5, 3)] == [7]
    sheet = np.asarray(Image.open(io.BytesIO(made.images[0])))
    half = made.cell // 2
    for at in (0, 6, 8, 24):
        row, column = divmod(at, made.columns)
        assert sheet[row * made.cell + half, column * made.cell + half].tolist() == 3 * [10 * at]

    noise, rows = small_store(12, 100), [*range(12)]
    large, small = (thumbnails.make_sheets(noise, rows, room=room, cells=(32, 96)) for room in (10**7, 2 * 10**4))
    assert large is not None
    assert small is not None
    assert small.cell < large.cell == 96
    assert small.bytes <= 2 * 10**4
    assert thumbnails.make_sheets(noise, rows, room=1000, cells=(32, 96)) is None
