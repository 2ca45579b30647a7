"""The gain from training on real images: flowers with half of the classes known, over views, heads and seeds.

    python benchmarks/flowers.py IMAGES WEIGHTS --backbone vit_small_patch14_dinov2 --views live 4 8 16 --seeds 0 1 2

IMAGES has one folder per class; the first half of the classes is old, half of their images are labelled. Prints (with
--out also appends) JSON lines: All/Old/New accuracy of k-means and of semi-supervised k-means on raw features, and of
the latter after training, for each output of the head, number of views and seed.
"""

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from sortal import ImageSet, SemiSupervisedKMeans, read_images
from sortal.config import Contrast, Training
from sortal.images.store.packing import Settings, pack
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.features import extract
from sortal.learning.methods import Contrastive
from sortal.learning.train import train
from sortal.metrics import accuracy


def cluster(x: NDArray[np.float32], images: ImageSet, labels: NDArray[np.int64], seed: int) -> dict[str, float | None]:
    k = len(images.classes) + len(images.new_classes)
    found = SemiSupervisedKMeans(k, n_init=100, random_state=seed).fit(x, labels).labels_
    hidden = images.unlabelled
    score = accuracy(images.truth[hidden], found[hidden], old=range(len(images.classes)))
    return {"all": score.all, "old": score.old, "new": score.new}


def fine_tune(
    arguments: argparse.Namespace, images: ImageSet, store: PixelStore, views: int | None, output: str, seed: int
) -> dict[str, object]:
    torch._dynamo.reset()
    backbone = load_backbone(arguments.backbone, weights=arguments.weights)
    method = Contrastive(backbone, Contrast(output=output), seed=seed)  # type: ignore[arg-type]
    start = time.perf_counter()
    result = train(method, images, store, Training(epochs=arguments.epochs, views=views, seed=seed))
    seconds = time.perf_counter() - start
    x = extract(backbone, store, normalise=True)
    return {**cluster(x, images, images.labels, seed), "loss": sum(result.losses.values()), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images")
    parser.add_argument("weights")
    parser.add_argument("--backbone", default="vit_small_patch14_dinov2")
    parser.add_argument("--views", nargs="+", default=["live", "4", "8", "16"])
    parser.add_argument("--outputs", nargs="+", default=["bottleneck", "prototypes"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--no-raw", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    def report(**record: object) -> None:
        print(json.dumps(record), flush=True)
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(json.dumps(record) + "\n")

    images = read_images(arguments.images)
    images = images.hide_labels(old=len(images.classes) // 2)
    print(images, torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu", flush=True)
    with TemporaryDirectory() as folder:
        backbone = load_backbone(arguments.backbone, weights=arguments.weights)
        store = pack(images, folder, settings=Settings(shorter_side=backbone.spec.shorter_side))
        if not arguments.no_raw:
            x = extract(backbone, store, normalise=True)
            for seed in arguments.seeds:
                report(what="k-means, raw", seed=seed, **cluster(x, images, np.full(len(images), -1), seed))
                report(what="semi-supervised, raw", seed=seed, **cluster(x, images, images.labels, seed))
        for output in arguments.outputs:
            for views in arguments.views:
                for seed in arguments.seeds:
                    n_views = None if views == "live" else int(views)
                    result = fine_tune(arguments, images, store, n_views, output, seed)
                    report(what="fine-tuned", output=output, views=views, seed=seed, **result)


if __name__ == "__main__":
    main()
