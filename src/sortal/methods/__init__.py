"""Training methods by name."""

from sortal.methods.contrastive import Contrastive
from sortal.methods.method import Method

METHODS: dict[str, type[Method]] = {"gcd": Contrastive}

__all__ = ["METHODS", "Contrastive", "Method"]
