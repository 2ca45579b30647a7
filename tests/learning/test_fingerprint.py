"""Keys of runs; that a run in a folder is told from others by them is in test_resume.py."""

from stores import small_store
from tiny_run import SMALL, a_convnet, named, reordered

from sortal.config import Training
from sortal.identity import by_content, differing, key_of


def test_everything_but_the_order_of_rows_makes_another_key() -> None:
    images, store = named(["a", "b", None, None], [1]), small_store(4, SMALL)
    key = key_of(a_convnet(), images, store, Training())
    assert key == key_of(a_convnet(), images, store, Training(chunks=2, compile=False, precision="float32"))
    assert [
        name for name, value in key_of(a_convnet(seed=1), images, store, Training()).items() if value != key[name]
    ] == ["weights"]
    for others in (named(["a", "a", None, None], [1]), named(["a", "b", None, None])):
        other = key_of(a_convnet(), others, store, Training())
        assert [name for name, value in other.items() if value != key[name]] == ["images"]
    assert store.digests[by_content(images, store)].tolist() == sorted(store.digests.tolist())
    assert key["images"] != key_of(a_convnet(), reordered(images, [1, 0, 2, 3]), store, Training())["images"]


def test_settings_that_differ_are_told() -> None:
    images, store = named(["a", None]), small_store(2, SMALL)
    one, other = (key_of(a_convnet(), images, store, Training(lr=lr)) for lr in (0.1, 0.2))
    assert differing(one, other) == "settings (lr was 0.1, is 0.2)"
