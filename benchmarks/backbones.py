"""Measure backbones of many families with arbitrary weights: features per second, what is trained, and tokens.

    python benchmarks/backbones.py
    python benchmarks/backbones.py convnext_tiny resnet50 --device cuda

On a CPU, seconds are those of the processor, and one thread computes: images per second and core, whatever else runs.
"""

import argparse
import math
import os
import platform
from time import monotonic, process_time

NAMES = (
    "vit_small_patch14_dinov2.lvd142m",
    "vit_base_patch14_dinov2.lvd142m",
    "vit_small_patch16_224.dino",
    "vit_base_patch16_224.dino",
    "vit_base_patch16_siglip_224.webli",
    "beitv2_base_patch16_224.in1k_ft_in22k",
    "open_clip:ViT-B-32",
    "swin_tiny_patch4_window7_224.ms_in1k",
    "convnext_tiny.fb_in22k",
    "convnext_atto.d2_in1k",
    "resnet50.a1_in1k",
    "regnety_008.pycls_in1k",
    "tf_efficientnet_lite2.in1k",
    "tf_efficientnet_lite0.in1k",
    "mobilenetv4_conv_small.e2400_r224_in1k",
    "mobilenetv3_large_100.ra_in1k",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--seconds", type=float, default=10.0, help="least time for each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, help="images at once; 8 on a CPU, 256 elsewhere")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

    import torch

    from sortal.learning.backbones.registry import load_without_weights
    from sortal.learning.token_cache import token_shape

    torch.set_num_threads(1)
    on_cpu = given.device == "cpu"
    batch, clock = given.batch or (8 if on_cpu else 256), process_time if on_cpu else monotonic
    where = platform.processor() or platform.machine() if on_cpu else torch.cuda.get_device_name()
    print(f"{where}, torch {torch.__version__}, batches of {batch}, {'float32, one thread' if on_cpu else 'bfloat16'}")
    print("| backbone | pixels | features | weights | trained | tokens of a view | images/s |")
    print("|---|---|---|---|---|---|---|")
    for name in given.names:
        backbone = load_without_weights(name).to(given.device)
        with torch.no_grad():
            for value in backbone.parameters():
                value.normal_(std=0.02)  # as numbers that are not finite can be slow
        encoder = backbone if on_cpu else backbone.in_bf16()
        shape, size = token_shape(backbone), backbone.spec.image_size
        images = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8, device=given.device)
        done, spent = 0, 0.0
        with torch.no_grad():
            encoder(encoder.normalise(images))  # warm up
            while spent < given.seconds:
                _wait(given.device)
                start = clock()
                encoder(encoder.normalise(images))
                _wait(given.device)
                done, spent = done + batch, spent + clock() - start
        weights, trained = (
            sum(value.numel() for value in backbone.parameters() if value.requires_grad or every) / 1e6
            for every in (True, False)
        )
        kilobytes = 2 * math.prod(shape) / 1000
        print(
            f"| `{name}` | {size} | {backbone.spec.width:,} | {weights:.1f} M | {trained:.1f} M | {kilobytes:,.0f} kB "
            f"| {done / spent:,.1f} |",
            flush=True,
        )


def _wait(device: str) -> None:
    """Wait until a GPU has computed what it was given."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
