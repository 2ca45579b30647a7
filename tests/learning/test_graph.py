"""Steps replayed from a CUDA graph equal plain steps; needs a GPU."""

import pytest
import torch
from support.tiny_methods import small
from torch import Tensor

from sortal.config import Contrast, Distillation, Losses, Ranks, Swaps
from sortal.learning import step
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.optimiser import Optimiser
from sortal.system.device import Compute
from sortal.system.distributed import launch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

LOSSES: dict[str, tuple[str, Losses]] = {
    "bottleneck": ("gcd", Contrast(hidden=64, output="bottleneck")),
    "prototypes": ("gcd", Contrast(hidden=64, output="prototypes", prototypes=512)),
    "rankstats": ("rankstats", Ranks()),
    "simgcd": ("simgcd", Distillation(hidden=64)),
    "uno": ("uno", Swaps(queue=64)),  # filled, then overwritten
}


def ends(*, chunks: int, kind: str, recorded: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Tensor], Tensor]:
    """Return the losses and norms of twelve steps, with another rate from the seventh on, and the final weights."""
    monkeypatch.setattr(step, "WARM", 3 if recorded else 1000)
    backbone = load_backbone("test_vit", weights="random", image_size=64)
    name, losses_of = LOSSES[kind]
    method = small(name, backbone, k=6, known=(0, 1, 2), losses=losses_of).cuda()
    trained = {name: value for name, value in method.named_parameters() if value.requires_grad}
    optimiser = Optimiser(trained, lr=0.1, momentum=0.9, clip=1.0)
    one = step.TrainingStep(launch("cuda"), method, Compute(torch.device("cuda")), optimiser, chunks)
    generator = torch.Generator("cuda").manual_seed(0)
    losses = []
    for i in range(12):
        if i == 6:
            optimiser.set_lr(0.01)
        inputs = torch.randn(32, 17, 64, device="cuda", generator=generator)
        images = torch.arange(16, device="cuda").repeat(2)
        labels = torch.where(images % 2 == i % 2, images % 3, -1)
        losses.append(one(inputs, images, labels, torch.tensor(i / 12, device="cuda")))
    assert (one._graph is not None) == recorded
    return losses, torch.cat([value.detach().flatten() for value in trained.values()])


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("chunks", [1, 2])
def test_recorded_steps_equal_plain_steps(chunks: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress of training, on which some losses depend, differs in every step."""
    recorded = ends(chunks=chunks, kind=kind, recorded=True, monkeypatch=monkeypatch)
    plain = ends(chunks=chunks, kind=kind, recorded=False, monkeypatch=monkeypatch)
    for one, other in zip(recorded[0], plain[0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert len({tuple(loss.tolist()) for loss in recorded[0]}) == 12  # no step repeats another
    torch.testing.assert_close(recorded[1], plain[1], rtol=1e-3, atol=1e-5)
