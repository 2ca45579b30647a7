"""The state of training: a checkpoint restores all of it, and copies undo what followed them."""

import torch
from support.tiny_run import a_convnet, same, settings, weights

from sortal.learning.checkpoint import TrainingState


def a_state(seed: int = 0) -> TrainingState:
    return TrainingState(a_convnet(seed=seed), settings(momentum=0.9))


def step(state: TrainingState) -> None:
    """Move all weights, and give them momentum."""
    for value in state.trainable().values():
        value.grad = torch.ones_like(value)
    state.optimiser.step()


def test_a_checkpoint_restores_everything_in_another_method() -> None:
    state, other = a_state(), a_state(seed=1)
    state.keep_good()
    step(state)
    state.keep_best(0.5)
    state.progress.step = 1
    other.restore(state.checkpoint({}))
    assert same(state.tensors(), other.tensors())
    assert same(state.best, other.best)
    assert same(state.good, other.good)
    assert other.progress == state.progress


def test_going_back_restores_weights_and_forgets_momentum_that_was_not_there() -> None:
    state = a_state()
    before = weights(state.method)
    state.keep_good()
    step(state)
    assert not same(weights(state.method), before)
    state.go_back()
    assert same(weights(state.method), before)
    assert not any(value.any() for value in state.optimiser.buffers.values())


def test_of_equally_good_epochs_the_later_is_selected() -> None:
    state, kept = a_state(), []
    for accuracy in (0.5, 0.25, 0.5, 0.375):
        step(state)
        state.keep_best(accuracy)
        kept.append(weights(state.method))
        state.progress.epoch += 1
    state.select_best()
    assert same(weights(state.method), kept[2])
    assert (state.progress.best, state.progress.best_epoch) == (0.5, 2)
    assert state.is_result_of(state.checkpoint({}))
    step(state)
    assert not state.is_result_of(state.checkpoint({}))
