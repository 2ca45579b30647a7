"""Methods by name: one record for each, of Sortal's own and of any other.

The record says all that is not the code of a method, so that commands start and runs load without it.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Literal

from sortal.config.rivals import Communities, Density, MeanShift, SelfExpertise
from sortal.config.rules import Rule, rules_of
from sortal.config.training import (
    Contrast,
    Debiasing,
    Distillation,
    Ranks,
    Reciprocity,
    Retention,
    Rounds,
    Swaps,
    Training,
)
from sortal.errors import InputError, Remedy, quoted

Clustering = Literal["semi-supervised", "kmeans", "head", "own"]


@dataclass(frozen=True, kw_only=True)
class Registration:
    """What Sortal knows of a method.

    `learner` is a subclass of `Method`, or where it is ("package.module:Class"); None trains nothing. `losses` is a
    frozen dataclass whose fields all have defaults. A method predicts by its `clustering`: k-means, semi-supervised or
    plain; the classifier it has trained ("head"); or a function of its own, `cluster`, called as
    `cluster(features, labels, k, losses, seed)` with rows of unit length (n, d), labels (n,) with −1 for none, and the
    number of categories, which is None where the method `finds_k` itself; it returns the cluster of each row (n,).
    A method that `needs_k` is created when k is given or estimated. `trained` is the number of last blocks it trains.
    """

    name: str
    title: str  # for tables
    learner: type | str | None
    losses: type | None = None
    training: Training = Training()
    clustering: Clustering = "semi-supervised"
    cluster: Callable[..., Any] | str | None = None
    needs_k: bool = False
    finds_k: bool = False
    trained: int | None = None  # None: as usual for the backbone

    @property
    def classifies(self) -> bool:
        return self.clustering == "head"

    def usual_losses(self) -> Any:
        """Return the settings with their defaults; None for a method without any."""
        return None if self.losses is None else self.losses()

    @property
    def is_own(self) -> bool:
        """Whether the method is part of Sortal."""
        return self.name in BUILT_IN

    @property
    def place(self) -> str:
        """Where its code is, as MODULE:NAME; its own name if it has none."""
        for each in (self.learner, self.cluster):
            if each is not None:
                return each if isinstance(each, str) else reference_to(each)
        return self.name


METHODS: dict[str, Registration] = {}  # by name
REFERENCES: dict[str, str] = {}  # the names of methods by other ways to name them: FILE.py:CLASS, MODULE:CLASS
BUILT_IN: dict[str, Registration] = {}


def register(name: str, learner: type | str | None, *, title: str | None = None, **of: Any) -> Registration:
    """Make a method known by a name; `of` are the other fields of `Registration`.

        register("mine", MyMethod, losses=MySettings, clustering="head", needs_k=True)

    A name can be registered again only by a class of the same name in the same module, as when a cell is run again.
    """
    found = Registration(name=name, title=title or name, learner=learner, **of)
    _check(found)
    before = METHODS.get(name)
    if before is not None and (before.is_own or before.place != found.place):
        taken = f"a method of {'Sortal' if before.is_own else before.place}"
        raise InputError(f"The name of a method must be new, got {quoted(name)}, {taken}. Choose another.")
    METHODS[name] = found
    if isinstance(learner, type):
        REFERENCES[reference_to(learner)] = name
    return found


def _check(found: Registration) -> None:
    name, losses = found.name, found.losses
    if not isinstance(name, str) or not name or not name.isascii() or not name.replace("-", "_").isidentifier():
        raise InputError(f"The name of a method must be a word of letters, digits, - and _, got {quoted(name)}.")
    if losses is not None:
        frozen = is_dataclass(losses) and losses.__dataclass_params__.frozen  # type: ignore[attr-defined]
        if not frozen or any(each.default is MISSING for each in fields(losses)):
            raise InputError(
                f"The losses of {name} must be a frozen dataclass with a default for every field, got {losses!r}."
            )
        for field, rule in rules_of(losses).items():
            if not (rule.number or rule.text or rule.words):
                raise InputError(f"{field} of {losses.__name__} must be a number, text, True or False, or a Literal.")
    elif found.learner is not None:
        raise InputError(f"The losses of {name} must be a frozen dataclass, got None.")
    if not Rule.of(Clustering).holds(found.clustering):
        raise InputError(f"clustering must be {Rule.of(Clustering)}, got {quoted(found.clustering)}.")
    if (found.clustering == "own") != (found.cluster is not None):
        raise InputError(f"{name} must have a function `cluster` if its clustering is 'own', and only then.")
    if found.finds_k and found.cluster is None:
        raise InputError(f"{name} must have a function `cluster` to find k.")
    if found.classifies and not found.needs_k:
        raise InputError(f"{name} must need k, as it predicts by a classifier.")


def reference_to(code: Any) -> str:
    """Name a class or function as MODULE:NAME."""
    return f"{code.__module__}:{code.__qualname__}"


def registered(reference: str) -> Registration | None:
    """Return the method of a name or reference, if it is loaded."""
    return METHODS.get(REFERENCES.get(reference, reference))


def registration_of(reference: str) -> Registration:
    """Return the method of a name or reference; raise InputError if there is none, or if its code is not loaded."""
    if (found := registered(reference)) is not None:
        return found
    if ":" in reference:
        raise InputError(
            f"The method {quoted(reference)} is not loaded, and Sortal loads code only where you name it.",
            Remedy("name it", method=reference),
        )
    from difflib import get_close_matches

    near = get_close_matches(reference.lower(), METHODS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise InputError(
        f"method must be {', '.join(sorted(METHODS))}, or your own as FILE.py:CLASS or MODULE:CLASS, "
        f"got {quoted(reference)}.{hint}"
    )


# Sortal's own, in the order of the paper's tables; docs/methods gives the sources.


def _register(name: str, code: str, title: str, losses: type, **of: Any) -> None:
    """Register a method whose class, and whose clustering if that is its own, are in a module of `learning.methods`."""
    if of.get("clustering") == "own":
        of["cluster"] = f"sortal.learning.methods.{code.partition(':')[0]}:cluster"
    learner = f"sortal.learning.methods.{code}" if ":" in code else None
    register(name, learner, title=title, losses=losses, **of)


_HEAD: dict[str, Any] = {"clustering": "head", "needs_k": True}
_LIKE_SIMGCD: dict[str, Any] = {**_HEAD, "training": Training(decay_biases=False)}
_OWN: dict[str, Any] = {"clustering": "own", "finds_k": True}
_STEP = Training(schedule="step", final_lr=0.1, weight_decay=1e-4)
_WARM = Training(warmup=0.05, final_lr=2.5e-3, weight_decay=1.5e-4)
_REPEATED = Training(patches=0.5, repeats=8.0)
register("kmeans", None, title="k-means")
_register("rankstats", "rankstats:RankStats", "RankStats+", Ranks, training=_STEP, **_HEAD)
_register("uno", "uno:Uno", "UNO+", Swaps, training=_WARM, **_HEAD)
_register("gcd", "contrastive:Contrastive", "GCD", Contrast)
_register("simgcd", "simgcd:SimGcd", "SimGCD", Distillation, **_LIKE_SIMGCD)
_register("sortal", "sortal:Sortal", "Sortal", Rounds, training=_REPEATED)
_register("legogcd", "legogcd:LegoGcd", "LegoGCD", Retention, **_LIKE_SIMGCD)
_register("rlcd", "rlcd:Rlcd", "RLCD", Reciprocity, **_LIKE_SIMGCD)
_register("debgcd", "debgcd:DebGcd", "DebGCD", Debiasing, **_LIKE_SIMGCD)
_register("cms", "cms:Cms", "CMS", MeanShift, training=Training(lr=0.05, final_lr=5e-3), **_OWN)
_register("selex", "selex:Selex", "SelEx", SelfExpertise, clustering="own", needs_k=True, trained=2)
_register("umap-hdbscan", "umap_hdbscan", "UMAP + HDBSCAN", Density, **_OWN)
_register("mgce", "mgce:Mgce", "MGCE's graph", Communities, training=Training(lr=0.05), **_OWN)
BUILT_IN.update(METHODS)
