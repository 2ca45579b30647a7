"""The tests run on the CPU, also where there is a GPU; CUDA_VISIBLE_DEVICES=0 make test lets them have it."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
