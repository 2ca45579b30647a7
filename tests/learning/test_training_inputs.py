"""The inputs of training: cached tokens where they fit, shared by several runs, or live views."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.stores import small_store
from support.tiny_run import LARGE, a_transformer, settings
from torch.nn.functional import normalize

from sortal.errors import InputError
from sortal.images.image_set import image_set
from sortal.learning import views
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.batches import Draws
from sortal.learning.frozen import FrozenEncoder, KeptTokens
from sortal.learning.health import Probe, effective_rank_and_spread
from sortal.learning.token_cache import Budget, CachedTokens, LiveViews, SharedTokens, TokenPlan
from sortal.learning.training_inputs import TrainingInputs, check_inputs, windows_of
from sortal.system.device import Compute, choose_compute
from sortal.system.distributed import launch
from sortal.system.progress import Runtime

ROOM, NOWHERE = Budget(memory=10**8), Budget(memory=0)


def inputs(backbone: Backbone, budget: Budget, notes: list[str], **changes: Any) -> TrainingInputs:
    made = TrainingInputs(
        backbone,
        small_store(6, LARGE),
        np.arange(6),
        settings(),
        launch("cpu"),
        None,
        budget,
        None,
        Runtime(device="cpu", note=notes.append),
    )
    return replace(made, **changes)


def encoder(backbone: Backbone) -> FrozenEncoder:
    return FrozenEncoder(backbone, Compute(backbone.device))


def test_views_are_cached_where_they_fit_and_live_where_they_do_not() -> None:
    backbone, notes = a_transformer().backbone, list[str]()
    room, none = inputs(backbone, ROOM, notes), inputs(backbone, NOWHERE, notes)
    assert isinstance(room.make(encoder(backbone), room.plan(3, resumed=False)), CachedTokens)
    assert isinstance(none.make(encoder(backbone), none.plan(3, resumed=False)), LiveViews)
    assert (room.views, none.views) == (3, None)
    assert [note.partition(": ")[0] for note in notes] == ["3 views of 6 images"] * 2
    assert room.plan(None, resumed=False) is None
    with pytest.raises(InputError, match=r"started with 3 cached views per image .* no longer fit the budget"):
        none.plan(3, resumed=True)


def test_runs_share_tokens_unless_something_that_determines_them_differs(tmp_path: Path) -> None:
    backbone, shared = a_transformer().backbone, SharedTokens(tmp_path)
    made = []
    for changes in ({}, {"config": settings(repeats=2.0, epochs=9)}, {"store": small_store(6, LARGE, seed=1)}):
        one = inputs(backbone, ROOM, [], shared=shared, **changes)
        plan = one.plan(3, resumed=False)
        made.append(one.make(encoder(backbone), plan))
        assert one.kept_crops(plan) is shared.centre is not None
    assert made[0] is made[1]
    assert made[1] is not made[2] is shared.tokens


def test_tokens_that_8_bit_integers_computed_are_told_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = a_transformer().backbone
    keys = list[str]()
    for multiplies, fits in product((False, True), (False, True)):
        monkeypatch.setattr("sortal.system.device.multiplies_int8", lambda multiplies=multiplies: multiplies)
        monkeypatch.setattr(type(backbone), "fits_int8", fits)
        for precision in ("auto", "float32"):
            one = inputs(backbone, ROOM, [], config=settings(precision=precision))
            one.plan(3, resumed=False)
            keys.append(one.key)
    usual, exact = keys[:2]
    assert keys[:6] == [usual, exact] * 3
    bf16 = choose_compute(backbone.device, worthwhile=False).bf16
    assert (keys[6] == usual, keys[7]) == (bf16, exact)


def test_tokens_of_centre_crops_get_what_the_planned_ones_leave() -> None:
    backbone = a_transformer().backbone
    one = inputs(backbone, ROOM, [])
    plan = one.plan(3, resumed=False)
    assert plan is not None
    assert one.kept_crops(plan).limit == 10**8 - plan.bytes
    assert one.kept_crops(None).limit == 10**8


@pytest.mark.parametrize(("patches", "probed"), [(0.5, 3), (0.75, 4), (0.01, 2), (1.0, None)])
def test_health_is_measured_on_as_many_tokens_as_a_step_sees(patches: float, probed: int | None) -> None:
    backbone, store = a_transformer().backbone, small_store(6, LARGE)
    one = inputs(backbone, ROOM, [], config=settings(patches=patches))
    assert one.probed_tokens(one.plan(None, resumed=False)) is None, "live views are seen whole"
    seen = one.probed_tokens(one.plan(3, resumed=False))
    health = Probe(encoder(backbone), store, np.arange(6), KeptTokens(0), seen).measure()
    (tokens,) = encoder(backbone).centre_crops(store, np.arange(6))
    if seen is not None:
        assert len(seen) == len({*seen.tolist()}) == probed
        assert seen[0] == 0, "the class token"
        tokens = tokens[:, seen]
    rank, spread = effective_rank_and_spread(normalize(backbone.tail(tokens).detach()).double())
    assert (health.effective_rank, health.spread) == pytest.approx((rank, spread), rel=1e-5)


def test_health_is_measured_on_patches_everywhere_in_a_view() -> None:
    backbone = load_backbone("test_vit", weights="random", image_size=160)
    assert backbone.patch_grid == (10, 10)
    one = inputs(backbone, ROOM, [], config=settings(patches=0.25))
    seen = one.probed_tokens(TokenPlan(0, "memory"))
    assert seen is not None
    patches = seen[1:] - 1
    assert len(patches) == 25
    assert len({*(patches // 10).tolist()}) > 7 < len({*(patches % 10).tolist()}), "rows and columns"


@pytest.mark.parametrize(("patches", "seen"), [(0.5, 2), (0.75, 3), (0.01, 1)])
def test_a_step_sees_a_share_of_the_patches_and_always_the_class_token(patches: float, seen: int) -> None:
    backbone = a_transformer().backbone
    assert backbone.patch_grid == (2, 2)
    one = inputs(backbone, ROOM, [], config=settings(patches=patches))
    made = one.make(encoder(backbone), one.plan(3, resumed=False))
    assert isinstance(made, CachedTokens)
    assert made.patterns is not None
    assert made.patterns.shape == (4096, 1 + seen)
    assert not made.patterns[:, 0].any()
    assert set(made.patterns[:, 1:].flatten().tolist()) == {1, 2, 3, 4}
    (step,) = made.stream(Draws(np.array([[0, 3]]), np.array([[0, 0]])), 0)
    assert step.shape == (4, 1 + seen, 64)
    assert backbone.tail(step.to(next(backbone.parameters()).dtype)).shape[0] == 4


def test_tokens_are_shared_between_runs_that_see_other_patches(tmp_path: Path) -> None:
    backbone, shared, made = a_transformer().backbone, SharedTokens(tmp_path), list[CachedTokens]()
    for patches in (0.5, 1.0, 0.5):
        one = inputs(backbone, ROOM, [], shared=shared, config=settings(patches=patches))
        found = one.make(encoder(backbone), one.plan(3, resumed=False))
        assert isinstance(found, CachedTokens)
        made.append(found)
    assert [each.tokens is made[0].tokens for each in made] == [True] * 3
    assert [each.patterns is None for each in made] == [False, True, False]


def test_a_network_without_patches_sees_all_of_a_view() -> None:
    backbone = load_backbone("convnet", weights="random", image_size=8)
    one = inputs(backbone, ROOM, [], store=small_store(6, 8), config=settings(patches=0.5))
    made = one.make(encoder(backbone), one.plan(3, resumed=False))
    assert isinstance(made, CachedTokens)
    assert made.patterns is None


def test_the_trunk_sees_windows_of_views_as_a_slow_reference_does() -> None:
    """Each view by itself: its crop, the patches of its pattern, and the blocks on these alone, in bfloat16 at last."""
    backbone, store, config = a_transformer().backbone, small_store(6, LARGE), settings(patches=0.5, windows=True)
    one = inputs(backbone, ROOM, [], store=store, config=config)
    patterns = windows_of(backbone, config)
    assert patterns is not None
    trunk = FrozenEncoder(backbone, Compute(backbone.device), patterns=patterns)
    plan = one.plan(3, resumed=False)
    made = one.make(trunk, plan)
    assert isinstance(made, CachedTokens)
    assert (made.tokens.shape, made.patterns) == ((6, 3, 3, 64), None), "a step sees all that is left"
    assert plan is not None
    assert plan.bytes == made.tokens.nbytes
    keys, net = views.content_keys(store), cast(Any, backbone.net)
    for row, view in product(range(6), range(3)):
        size = backbone.spec.image_size
        crop = views.random_crops(
            store, keys, np.array([row]), np.array([view]), size=size, flip=config.flip, seed=config.seed, epoch=0
        )
        pixels = torch.from_numpy(store.crops(crop.rows, crop.tops, crop.lefts, size))
        tokens = net._pos_embed(net.patch_embed(backbone.normalise(pixels, torch.from_numpy(crop.flipped))))
        assert crop.states is not None
        seen = patterns[views.pattern_of(crop.states)[0]]
        tokens = tokens[:, [0, *(1 + seen).tolist()]]
        for block in backbone.blocks[:-1]:
            tokens = block(tokens)
        expected = tokens[0].to(torch.bfloat16)
        assert torch.allclose(made.tokens[row, view], expected, rtol=2**-7, atol=1e-5), "to the last bit but one"


def test_windows_without_effect_are_refused() -> None:
    images = image_set([*"abcdef"], pixels=np.zeros((6, 8, 8, 3), np.uint8), labels=[None] * 6)
    whole, small = a_transformer().backbone, load_backbone("convnet", weights="random", image_size=8)
    check_inputs(whole, images, small_store(6, LARGE), settings(patches=0.5, windows=True))
    with pytest.raises(InputError, match=r"windows must be False where patches is 1"):
        check_inputs(whole, images, small_store(6, LARGE), settings(windows=True))
    with pytest.raises(InputError, match=r"windows must be False for convnet, which cannot do without patches"):
        check_inputs(small, images, small_store(6, 8), settings(patches=0.5, windows=True))


def test_tokens_of_windows_are_others_than_those_of_whole_views(tmp_path: Path) -> None:
    backbone, shared, keys = a_transformer().backbone, SharedTokens(tmp_path), list[str]()
    for changes in ({"windows": True}, {"windows": True, "patches": 0.75}, {}, {"windows": True, "patches": 1.0}):
        one = inputs(backbone, ROOM, [], shared=shared, config=settings(**{"patches": 0.5, **changes}))
        one.plan(3, resumed=False)
        keys.append(one.key)
    assert len(set(keys)) == 3
    assert keys[2] == keys[3], "all patches are a whole view"
    small = load_backbone("convnet", weights="random", image_size=8)
    assert windows_of(small, settings(patches=0.5, windows=True)) is None
