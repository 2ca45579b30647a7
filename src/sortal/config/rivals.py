"""Settings of methods published since 2023, and of what people run in notebooks; docs/methods gives the sources."""

from dataclasses import dataclass

from sortal.config.rules import AUTO, Auto, SettingsGroup, option


@dataclass(frozen=True, kw_only=True)
class MeanShift(SettingsGroup):
    """CMS (Choi, Kang and Cho, CVPR 2024): features are shifted towards their neighbours, then contrasted."""

    neighbours: int = option(8, "Nearest images whose mean a feature is shifted towards.", least=1)
    shift: float = option(0.5, "Share of that mean in a shifted feature.", least=0, most=1)
    temperature: float = option(0.25, "Of the unsupervised contrastive loss; 0.3 on generic images.", least=1e-3)
    supervised_temperature: float = option(0.07, "Of the supervised contrastive loss.", least=1e-3)
    supervised_weight: float = option(0.35, "Weight of the supervised loss; the other has the rest.", least=0, most=1)
    hidden: int = option(2048, "Width of the layers of the projection head.", least=1)
    bottleneck: int = option(256, "Width of its output.", least=1)
    patience: int = option(2, "Shifts in a row that may fail to help labelled images before clustering ends.", least=1)


@dataclass(frozen=True, kw_only=True)
class SelfExpertise(SettingsGroup):
    """SelEx (Rastegar et al., ECCV 2024): images are clustered before every epoch, in a hierarchy that teaches them."""

    smoothing: float = option(
        1.0, "Share of distant images in the target of a view; 0.1 on generic images.", least=0, most=1
    )
    temperature: float = option(1.0, "Of the unsupervised contrastive loss.", least=1e-3)
    supervised_temperature: float = option(0.07, "Of all supervised contrastive losses.", least=1e-3)
    supervised_weight: float = option(
        0.35, "λ: the supervised losses have half of it, the other loss 1 − λ.", least=0, most=1
    )
    capped: int = option(10, "First iterations of k-means, in which clusters have at most the mean size.", least=0)
    hidden: int = option(2048, "Width of the layers of the projection head.", least=1)
    bottleneck: int = option(256, "Width of its output.", least=1)
    curvature: float = option(0.0, "Of the hyperbolic space of Hyp-SelEx, which has 0.1; 0 is SelEx.", least=0)
    radius: float = option(2.0, "Longest output of the head in that space.", above=0)
    curved: float = option(1.0, "Share of hyperbolic losses at the end; it rises from 0.", least=0, most=1)


@dataclass(frozen=True, kw_only=True)
class Density(SettingsGroup):
    """UMAP, then HDBSCAN, on features of the backbone as they are; as in many notebooks."""

    components: int = option(10, "Dimensions that UMAP leaves.", least=2)
    neighbours: int = option(15, "Nearest images that UMAP keeps close.", least=2)
    distance: float = option(0.0, "Least distance of two images after UMAP.", least=0, most=1)
    smallest: int | Auto = option(
        AUTO, "Images of the smallest category; auto is half of a known one's labels, from 5 to 50.", least=2
    )
    samples: int | Auto = option(AUTO, "Neighbours that make a place dense; auto is as many as smallest.", least=1)


@dataclass(frozen=True, kw_only=True)
class Communities(SettingsGroup):
    """MGCE's graph (k not given): communities of nearest neighbours, found before every epoch, teach the next."""

    neighbours: int | Auto = option(AUTO, "Nearest images of each in the graph; auto follows labelled images.", least=1)
    similarity: float = option(0.6, "Least cosine of neighbours.", least=-1, most=1)
    fewest: int = option(5, "Images of a community that counts.", least=1)
    community_temperature: float = option(0.05, "Of the classification into communities.", least=1e-3)
    first_weight: float = option(0.01, "Weight of that classification at first.", least=0)
    last_weight: float = option(0.1, "Its weight in the end.", least=0)
    ramp: float = option(0.5, "Fraction of training over which it rises.", above=0, most=1)
    momentum: float = option(0.1, "Share of its past that a community's memory keeps in a step.", least=0, most=1)
    student_temperature: float = option(0.1, "Of the classification of labelled images.", least=1e-3)
    temperature: float = option(1.0, "Of the unsupervised contrastive loss.", least=1e-3)
    supervised_temperature: float = option(0.07, "Of the supervised contrastive loss.", least=1e-3)
    supervised_weight: float = option(0.35, "λ, of both supervised losses.", least=0, most=1)
    hidden: int = option(2048, "Width of the layers of the projection head.", least=1)
    bottleneck: int = option(256, "Width of its output.", least=1)
