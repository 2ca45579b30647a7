"""The processes that work together: one, or all those that torchrun started, on one host or several."""

import logging
import os
from typing import Any

import torch.distributed as dist
from lightning_fabric import Fabric

from sortal.inputs import choose_device
from sortal.shards import Shards


def launch(device: str = "auto") -> Fabric:
    """This process's device, and the others to work with."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it gives advice on precision, which is ours
    local, world = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    chosen = choose_device(device, None)
    if world == 1:
        devices: Any = [chosen.index or 0] if chosen.type == "cuda" else 1
        fabric = Fabric(accelerator=chosen.type, devices=devices)
    else:
        fabric = Fabric(accelerator=chosen.type, devices=local, num_nodes=world // local, strategy="ddp")
    fabric.launch()
    return fabric


def shards(fabric: Fabric) -> Shards:
    """The same processes for rows that are spread over them."""
    return Shards(dist.group.WORLD if fabric.world_size > 1 else None)
