"""The inputs of a training run's tail: cached tokens where they fit, or else live views."""

import hashlib
import json
import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sortal.config import AUTO, VIEWS, Auto, Training
from sortal.errors import InputError
from sortal.images.image_set import ImageSet
from sortal.images.store.pixel_store import PixelStore
from sortal.learning import token_cache, views
from sortal.learning.backbones.backbone import Backbone, digest
from sortal.learning.frozen import FrozenEncoder, KeptTokens
from sortal.learning.token_cache import Budget, CachedTokens, InputSource, LiveViews, SharedTokens, TokenPlan
from sortal.learning.views import RowNumbers
from sortal.system.device import choose_compute
from sortal.system.distributed import Processes
from sortal.system.progress import Runtime
from sortal.system.text import plural

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class TrainingInputs:
    """Plans and makes the inputs of a run on some rows of a store.

    Of several processes, each caches the tokens of its own share of the images.
    """

    backbone: Backbone
    store: PixelStore
    rows: RowNumbers
    config: Training
    processes: Processes
    folder: Path | None  # for a file of tokens; None in all processes but the first
    budget: Budget
    shared: SharedTokens | None
    runtime: Runtime
    of_image: int = 2  # views of each image of a batch
    augmented: str = ""  # the code that changes views, if any does
    views: int | None = None  # cached ones per image, once planned
    key: str = ""  # of their tokens

    def plan(self, wanted: int | Auto | None, *, resumed: bool) -> TokenPlan | None:
        """Plan where to cache the wanted views, if they fit, and report the cost; a resumed run needs those it had."""
        if wanted is None or (wanted == AUTO and not self.backbone.has_trunk):
            return None
        n_views, own = max(VIEWS if isinstance(wanted, str) else wanted, self.of_image), len(self._own)
        shape = token_cache.token_shape(self.backbone, windows_of(self.backbone, self.config))
        needed = own * n_views * 2 * math.prod(shape)
        self.key = self._digest(n_views)
        if self.shared is not None and self.shared.key == self.key:
            self.views = n_views
            return TokenPlan(needed, self.shared.where)
        folder = self._folder if self.processes.size == 1 else None  # processes cannot share a file of tokens
        plan = token_cache.plan_tokens(needed, self.budget, self.processes.device, folder)
        if any(other.where is None for other in self.processes.gather_objects(plan)):
            plan = TokenPlan(needed, None)
        if plan.where is None and resumed:
            raise InputError(
                f"The run in this folder started with {n_views} cached views per image ({plan.bytes:,} bytes of "
                "tokens), which no longer fit the budget. Raise the budget, or choose another folder."
            )
        if self.processes.is_first:
            each = " in each process" if self.processes.size > 1 else ""
            self.runtime.note(f"{n_views} views of {plural(own, 'image')}{each}: {plan}.")
        if plan.where is None:
            logger.warning("Training is slower than it could be: %s.", plan)
            return None
        self.views = n_views
        return plan

    def make(self, trunk: FrozenEncoder, plan: TokenPlan | None) -> InputSource:
        """Compute the tokens that were planned, unless they are shared already; without a plan, use live views."""
        flip, seed = self.config.flip, self.config.seed
        if plan is None or plan.where is None or self.views is None:
            share = self.processes.rank, self.processes.size
            return LiveViews(trunk, self.store, flip=flip, seed=seed, share=share, of_image=self.of_image)
        if self.shared is not None and self.shared.key == self.key and self.shared.tokens is not None:
            return self._thinned(self.shared.tokens)
        tokens = token_cache.cache_tokens(
            trunk,
            self.store,
            self._own,
            n_views=self.views,
            flip=flip,
            seed=seed,
            where=plan.where,
            folder=self._folder,
            key=self.key,
            runtime=self.runtime,
        )
        if self.shared is not None:
            self.shared.hold(self.key, plan.where, tokens)
        return self._thinned(tokens)

    def _thinned(self, tokens: CachedTokens) -> CachedTokens:
        """Return the tokens such that a step sees some patches of a view; the class token is always seen."""
        if tokens.of_image != self.of_image:
            tokens = replace(tokens, of_image=self.of_image)
        patterns = patterns_of(self.backbone, self.config)
        if patterns is None or windows_of(self.backbone, self.config) is not None:
            return tokens
        return replace(tokens, patterns=self._tokens_of(patterns).to(tokens.tokens.device))

    def _tokens_of(self, patterns: RowNumbers) -> Tensor:
        """Return the tokens of these sets of patches (patterns, count), and those that are of no patch before them."""
        prefix = token_cache.token_shape(self.backbone, patterns)[0] - patterns.shape[1]
        always = np.broadcast_to(np.arange(prefix), (len(patterns), prefix))
        return torch.from_numpy(np.concatenate([always, patterns + prefix], axis=1))

    def probed_tokens(self, plan: TokenPlan | None) -> Tensor | None:
        """Return as many tokens of a view as a step sees, (count,), of patches everywhere in it; None for all."""
        patterns, grid = patterns_of(self.backbone, self.config), self.backbone.patch_grid
        if patterns is None or grid is None or plan is None:  # live views are seen whole
            return None
        everywhere = np.random.default_rng(0).permutation(math.prod(grid))[None, : patterns.shape[1]]
        return self._tokens_of(np.sort(everywhere)).to(self.processes.device)[0]

    def kept_crops(self, plan: TokenPlan | None) -> KeptTokens:
        """Return a store for tokens of centre crops, limited to what the budget leaves beside the planned tokens."""
        shared = self.shared if plan is not None else None
        if shared is not None and shared.centre is not None:
            return shared.centre
        taken = plan.bytes if plan is not None and plan.where != "file" else 0
        room = token_cache.available_bytes(self.budget, self.processes.device) - taken
        kept = KeptTokens(room if self.backbone.has_trunk else 0)
        if shared is not None:
            shared.centre = kept
        return kept

    def close(self) -> None:
        """Delete a file of tokens that is not shared."""
        if self.shared is None and self.folder is not None:
            token_cache.delete_tokens(self.folder)

    @property
    def _own(self) -> RowNumbers:
        return self.rows[slice(*self.processes.share_of(len(self.rows)))]

    @property
    def _folder(self) -> Path | None:
        return self.folder if self.shared is None else self.shared.folder

    def _digest(self, n_views: int) -> str:
        """Return a digest of everything that determines the tokens; the trained part of the backbone does not."""
        frozen: dict[str, Tensor] = dict(self.backbone.named_buffers())
        frozen |= {name: value for name, value in self.backbone.named_parameters() if not value.requires_grad}
        c = self.config
        contents = hashlib.sha256(np.ascontiguousarray(self.store.digests[self.rows]).data).hexdigest()
        about = [self.backbone.spec.described(), self.store.made, contents, n_views, c.flip, c.seed, c.precision]
        if windows_of(self.backbone, c) is not None:
            about.append(c.patches)
        compute = choose_compute(self.processes.device, precision=c.precision, worthwhile=False)
        if compute.int8 and self.backbone.fits_int8:
            about.append("int8")
        return digest(frozen, json.dumps([*about, self.augmented] if self.augmented else about))


def patterns_of(backbone: Backbone, config: Training) -> RowNumbers | None:
    """Return the sets of patches that a step may see of a view, (patterns, count); None if it sees all."""
    grid = backbone.patch_grid
    return None if config.patches == 1 or grid is None else views.patch_patterns(grid, config.patches)


def windows_of(backbone: Backbone, config: Training) -> RowNumbers | None:
    """Return the same if the trunk leaves the other patches out; otherwise None."""
    return patterns_of(backbone, config) if config.windows and backbone.sees_windows else None


def check_inputs(backbone: Backbone, images: ImageSet, store: PixelStore, config: Training) -> None:
    """Refuse images, a backbone or settings that training cannot start with."""
    if len(images) != len(store):
        raise InputError(
            f"store must have one row per image, got {plural(len(store), 'row')} for {plural(len(images), 'image')}."
        )
    if images.validation.all():
        raise InputError("images must include training images, but all of them are for validation.")
    views.check_store(store, backbone.spec)
    if not any(value.requires_grad for value in backbone.parameters()):
        raise InputError("The backbone must have blocks to train, but it is frozen. Use backbone.train_last(1).")
    if config.views not in (None, AUTO) and not backbone.has_trunk:
        raise InputError(
            f"views must be 'auto' or 'live' (None in Training) for a backbone without frozen blocks, as there are no "
            f"tokens to cache, got {config.views}."
        )
    if config.windows and windows_of(backbone, config) is None:
        unable = f"for {backbone.spec.name}, which cannot do without patches"
        where = "where patches is 1" if config.patches == 1 else unable
        raise InputError(f"windows must be False {where}, as it has no effect, got True.")
