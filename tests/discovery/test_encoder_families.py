"""Networks of many families through a whole run: sorted, saved, and used on new images, without the files they had."""

import shutil
from pathlib import Path

import pytest
from support import tiny_encoders, tiny_folder
from support.runtimes import CPU
from support.thorough import thorough_but

from sortal.discovery.prediction import predict
from sortal.images.store.packing import Settings
from sortal.learning.backbones.registry import load_backbone

pytestmark = pytest.mark.usefixtures("no_network", "quickly")


@pytest.mark.parametrize(
    "family", thorough_but(["convnext"], ["siglip", "swin", "convnext", "efficientnet", "open_clip"])
)
def test_a_network_of_any_family_sorts_and_predicts(family: str, tmp_path: Path) -> None:
    files = tiny_folder.planted(each=4, labelled=3)
    tiny_folder.write(tmp_path / "images", files)
    network = tiny_encoders.write(tmp_path / "some" / family, family)
    run = tiny_folder.sort(tmp_path / "images", tmp_path / "run", backbone=network, epochs=1, views=2, seed=1)
    spec = run.facts.backbone
    assert (spec.name, spec.image_size, spec.interpolation) == (network, tiny_encoders.SIZE, "bilinear")
    assert run.facts.training is not None
    assert run.facts.training.views == 2  # cached: there is a trunk
    assert (run.cache / "pixels" / Settings.of(spec).key).is_dir()
    assert run.features.shape == (24, spec.width)
    shutil.rmtree(tmp_path / "some")
    assert load_backbone(str(run.folder / "model.json")).fingerprint() == run.facts.hashes.model
    new = tmp_path / "new"
    for name in ("elm", "oak"):
        tiny_folder.save(new / f"{name}.png", tiny_folder.picture(name, 77))
    found = predict(run.folder, new, runtime=CPU)
    assert found.assignments.files == ("elm.png", "oak.png")
    assert {*found.assignments.category_id.tolist()} <= {category.id for category in run.categories}
