"""What a review asks of clustering and other models, as an interface."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from sortal.reviews.actions import Refit
from sortal.reviews.history import Review
from sortal.runs.confidence import Ints
from sortal.runs.run import Run


class Advisor(Protocol):
    """Makes proposals that need clustering or another model."""

    def parts(self, rows: Ints, anchored: Ints, count: int) -> list[Ints]:
        """Divide rows into parts; those that are `anchored` stay in the first."""
        ...

    def refit(self, review: Review) -> Refit:
        """Cluster again, with the decisions as constraints."""
        ...

    def names(self, rows: Ints, others: Sequence[Ints]) -> list[str]:
        """Suggest names for a category with these typical images, among categories with those."""
        ...

    @property
    def words(self) -> Sequence[str]:
        """Names that the person has given."""
        ...

    @property
    def sees(self) -> bool:
        """Whether images can be found by what is seen in them."""
        ...

    def seen(self, text: str) -> Ints:
        """Return the rows of the images that have been looked at so far, those that a text describes best first."""
        ...


Advising: TypeAlias = Callable[[Run], Advisor]  # makes the advisor for a run
