"""Methods: the paper's losses by hand, what each constant changes, and where gradients go."""

import json
from dataclasses import asdict, fields, replace
from math import exp, log
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sortal.backbone import load_backbone
from sortal.batches import Batch
from sortal.config import Contrast
from sortal.losses import contrastive
from sortal.methods import METHODS, Contrastive, Method
from sortal.network import Backbone

SMALL = Contrast(hidden=16, bottleneck=8, prototypes=40)


def convnet(trained: int = 1) -> Backbone:
    return load_backbone("convnet", image_size=8, trained=trained)


def method_of(config: Contrast = SMALL, seed: int = 0) -> Contrastive:
    return Contrastive(convnet(), config, seed=seed)


def inputs(backbone: Backbone, n: int = 12) -> Tensor:
    size = backbone.spec.image_size
    images = torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(0))
    return backbone.trunk(images)


def batch_of(outputs: Tensor, labels: list[int] | None = None) -> Batch:
    """Two views of each image, first all first ones; of every three images one is unlabelled."""
    n = len(outputs) // 2
    labels = [(i % 3) - 1 for i in range(n)] if labels is None else labels
    return Batch(outputs, torch.arange(n).repeat(2), torch.tensor(labels).repeat(2))


def unit_rows(n: int, seed: int = 0) -> Tensor:
    return nnf.normalize(torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)), dim=1)


def losses_of(method: Method, batch: Batch) -> dict[str, float]:
    return {name: float(value.detach()) for name, value in method.losses(batch).items()}


# Losses


def test_the_two_losses_by_hand() -> None:
    # Images at 0° and at 180°, both views in one place, and an unlabelled one whose views are at 90° and at 270°.
    # Unsupervised, τ = 1: views of the first two have e for the partner, 2 e^−1 for the opposite and 2 for the rest;
    # those of the third e^−1 for the partner and 4 for the rest. Supervised, τ = 1/2: e² for the partner, 2 e^−2.
    outputs = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]])
    unsupervised = (4 * (log(exp(1) + 2 * exp(-1) + 2) - 1) + 2 * (log(exp(-1) + 4) + 1)) / 6
    supervised = log(exp(2) + 2 * exp(-2)) - 2
    config = Contrast(hidden=4, bottleneck=2, supervised_temperature=0.5)
    assert losses_of(method_of(config), batch_of(outputs, [0, 1, -1])) == {
        "unsupervised": pytest.approx(0.65 * unsupervised, abs=1e-6),
        "supervised": pytest.approx(0.35 * supervised, abs=1e-6),
    }


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(-1, 3), min_size=1, max_size=8),
    st.floats(0, 1),
    st.floats(0.05, 5),
    st.floats(0.05, 5),
    st.integers(0, 1000),
)
def test_the_total_is_the_weighted_sum(labels: list[int], weight: float, tau: float, tau_s: float, seed: int) -> None:
    config = Contrast(hidden=1, bottleneck=1, supervised_weight=weight, temperature=tau, supervised_temperature=tau_s)
    batch = batch_of(unit_rows(2 * len(labels), seed), labels)
    info_nce = float(contrastive(batch.outputs, batch.images, temperature=tau))
    known = batch.labels >= 0
    sup_con = float(contrastive(batch.outputs[known], batch.labels[known], temperature=tau_s))
    total = sum(losses_of(method_of(config), batch).values())
    assert total == pytest.approx((1 - weight) * info_nce + weight * sup_con, rel=1e-5, abs=1e-5)


def test_a_batch_without_a_labelled_image_has_no_supervised_loss() -> None:
    method = method_of()
    outputs = unit_rows(8).requires_grad_()
    losses = method.losses(batch_of(outputs, [-1, -1, -1, -1]))
    assert float(losses["supervised"].detach()) == 0.0
    assert float(losses["unsupervised"].detach()) > 0
    (gradient,) = torch.autograd.grad(losses["supervised"], outputs)
    assert torch.equal(gradient, torch.zeros(8, 4))


def test_labels_change_the_supervised_loss_alone() -> None:
    one, other = (losses_of(method_of(), batch_of(unit_rows(8), labels)) for labels in ([0, 0, 1, -1], [0, 1, 1, -1]))
    assert one["unsupervised"] == other["unsupervised"]
    assert one["supervised"] != pytest.approx(other["supervised"], abs=1e-3)


def test_losses_are_numbers_with_names() -> None:
    method = method_of()
    losses = method.losses(batch_of(method(inputs(method.backbone))))
    assert list(losses) == ["unsupervised", "supervised"]
    assert all(value.shape == () and value.requires_grad for value in losses.values())


# Constants

CHANGES: dict[str, tuple[Any, str]] = {  # another value, and what it changes
    "temperature": (0.5, "unsupervised"),
    "supervised_temperature": (0.5, "supervised"),
    "supervised_weight": (0.5, "unsupervised supervised"),
    "hidden": (24, "shapes unsupervised supervised"),
    "bottleneck": (12, "shapes unsupervised supervised"),
    "output": ("bottleneck", "shapes unsupervised supervised"),
    "prototypes": (30, "shapes unsupervised supervised"),
}


def what_it_does(config: Contrast) -> dict[str, Any]:
    method = method_of(config)
    losses = losses_of(method, batch_of(method(inputs(method.backbone))))
    shapes = {name: tuple(value.shape) for name, value in method.head.named_parameters()}
    return {"shapes": shapes, **losses}


def test_every_constant_is_in_the_table() -> None:
    assert list(CHANGES) == [each.name for each in fields(Contrast)]


@pytest.mark.parametrize("name", CHANGES)
def test_a_constant_changes_what_it_says(name: str) -> None:
    value, changed = CHANGES[name]
    base = replace(SMALL, output="prototypes")
    before, after = what_it_does(base), what_it_does(replace(base, **{name: value}))
    assert " ".join(part for part in before if before[part] != after[part]) == changed


def test_the_number_of_prototypes_does_not_matter_without_them() -> None:
    assert what_it_does(SMALL) == what_it_does(replace(SMALL, prototypes=3))


@pytest.mark.parametrize(("output", "width"), [("bottleneck", 8), ("prototypes", 40)])
def test_outputs_are_the_head_s(output: Any, width: int) -> None:
    method = method_of(replace(SMALL, output=output))
    given_inputs = inputs(method.backbone)
    outputs = method(given_inputs)
    assert outputs.shape == (12, width)
    assert torch.equal(outputs, method.head(method.backbone.tail(given_inputs)))


def test_by_default_it_is_the_paper_s_head_up_to_the_bottleneck() -> None:
    method = Contrastive(convnet())
    assert method.config == Contrast()
    assert method.head.prototypes is None
    assert method(inputs(method.backbone, 2)).shape == (2, 256)


def test_the_seed_starts_the_head() -> None:
    heads = [method_of(seed=seed).head.state_dict()["mlp.0.weight"] for seed in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


# Gradients


def gradients(method: Contrastive) -> set[str]:
    """The names of the weights that the losses of a batch have a gradient for."""
    losses = method.losses(batch_of(method(inputs(method.backbone))))
    torch.stack(list(losses.values())).sum().backward()
    return {name for name, value in method.named_parameters() if value.grad is not None and value.grad.any()}


@pytest.mark.parametrize("output", ["bottleneck", "prototypes"])
@pytest.mark.parametrize("trained", [0, 1, 2, 3])
def test_gradients_reach_the_head_and_the_trained_blocks_alone(trained: int, output: Any) -> None:
    method = Contrastive(convnet(trained), replace(SMALL, output=output))
    tail = tuple(f"backbone.net.{block}." for block in range(3 - trained, 3))
    expected = {name for name, _ in method.named_parameters() if name.startswith(("head.", *tail))}
    assert gradients(method) == expected
    assert ("head.prototypes" in expected) == (output == "prototypes")


def test_of_a_transformer_the_last_block_and_the_head_are_trained() -> None:
    backbone = load_backbone("vit_tiny_patch16_224", weights="random", image_size=32)
    method = Contrastive(backbone, SMALL)
    expected = {name for name, _ in method.named_parameters() if name.startswith(("head.", "backbone.net.blocks.11."))}
    assert gradients(method) == expected
    assert not any("backbone.net.norm." in name for name in expected)


@pytest.mark.parametrize(("weight", "silent"), [(0.0, "supervised"), (1.0, "unsupervised")])
def test_a_loss_of_no_weight_gives_no_gradient(weight: float, silent: str) -> None:
    outputs = unit_rows(12).requires_grad_()
    losses = method_of(replace(SMALL, supervised_weight=weight)).losses(batch_of(outputs))
    for name, loss in losses.items():
        (gradient,) = torch.autograd.grad(loss, outputs)
        assert bool(gradient.any()) == (name != silent)


@pytest.mark.parametrize("output", ["bottleneck", "prototypes"])
def test_a_view_s_output_is_its_own(output: Any) -> None:
    """The loop spreads views over processes and cuts batches to fit memory."""
    method = method_of(replace(SMALL, output=output)).train()
    whole = inputs(method.backbone)
    for parts in (2, 5, 12):
        torch.testing.assert_close(torch.cat([method(part) for part in whole.chunk(parts)]), method(whole))


def test_steps_along_the_gradient_lower_the_loss() -> None:
    method = method_of()
    whole = inputs(method.backbone)
    optimizer = torch.optim.SGD([value for value in method.parameters() if value.requires_grad], lr=0.1, momentum=0.9)
    totals = []
    for _ in range(60):
        total = torch.stack(list(method.losses(batch_of(method(whole))).values())).sum()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        totals.append(float(total.detach()))
    assert totals[-1] < 0.8 * totals[0]


# Names and settings


def test_methods_have_names() -> None:
    assert dict(METHODS) == {"gcd": Contrastive}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_made_of_a_backbone(name: str) -> None:
    method = METHODS[name](convnet())
    assert isinstance(method, Method)
    assert method.settings()["name"] == METHODS[name].__name__
    assert all(value.isfinite() for value in method.losses(batch_of(method(inputs(method.backbone)))).values())


def test_settings_tell_every_constant() -> None:
    base = method_of().settings()
    assert base == {"name": "Contrastive", **asdict(SMALL)}
    assert json.loads(json.dumps(base)) == base
    for name, (value, _) in CHANGES.items():
        other: dict[str, Any] = {name: "prototypes" if name == "output" else value}
        assert method_of(replace(SMALL, **other)).settings() == {**base, **other} != base
    assert method_of(seed=1).settings() == base  # the weights it starts from are told apart by themselves


def test_a_method_must_say_what_a_view_becomes_and_what_a_batch_costs() -> None:
    kind: Any = Method
    with pytest.raises(TypeError, match="abstract"):
        kind(convnet())
