"""Settings of methods published since 2023, and of what people run in notebooks; docs/methods gives the sources."""

from dataclasses import dataclass

from sortal.config.rules import SettingsGroup, option


@dataclass(frozen=True, kw_only=True)
class MeanShift(SettingsGroup):
    """CMS (Choi, Kang and Cho, CVPR 2024): features are shifted towards their neighbours, then contrasted."""

    neighbours: int = option(8, "Nearest images whose mean a feature is shifted towards.", least=1)
    shift: float = option(0.5, "Share of that mean in a shifted feature.", least=0, most=1)
    temperature: float = option(0.25, "Of the unsupervised contrastive loss; 0.3 on generic images.", least=1e-3)
    supervised_temperature: float = option(0.07, "Of the supervised contrastive loss.", least=1e-3)
    supervised_weight: float = option(0.35, "Weight of the supervised loss; the other has the rest.", least=0, most=1)
    patience: int = option(2, "Shifts in a row that may fail to help labelled images before clustering ends.", least=1)
