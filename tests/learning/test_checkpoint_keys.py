"""Keys of runs; that a run in a folder is told from others by them is in test_resume.py."""

from stores import small_store
from tiny_run import SMALL, a_convnet, named, reordered

from sortal.config import Training
from sortal.learning.checkpoint import changed_parts, content_order, run_key


def test_everything_but_the_order_of_rows_makes_another_key() -> None:
    images, store = named(["a", "b", None, None], [1]), small_store(4, SMALL)
    key = run_key(a_convnet(), images, store, Training())
    assert key == run_key(a_convnet(), images, store, Training(chunks=2, compile=False, precision="float32"))
    assert changed_parts(key, run_key(a_convnet(seed=1), images, store, Training())) == ["weights"]
    for others in (named(["a", "a", None, None], [1]), named(["a", "b", None, None])):
        assert changed_parts(key, run_key(a_convnet(), others, store, Training())) == ["images"]
    assert store.digests[content_order(images, store)].tolist() == sorted(store.digests.tolist())
    assert key["images"] != run_key(a_convnet(), reordered(images, [1, 0, 2, 3]), store, Training())["images"]


def test_settings_that_differ_are_named() -> None:
    images, store = named(["a", None]), small_store(2, SMALL)
    one, other = (run_key(a_convnet(), images, store, Training(lr=lr)) for lr in (0.1, 0.2))
    assert changed_parts(one, other) == ["settings (lr was 0.1, is 0.2)"]
    assert changed_parts(one, one) == []
