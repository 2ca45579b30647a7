"""The tests run on the CPU, also where there is a GPU; CUDA_VISIBLE_DEVICES=0 make test lets them have it."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # on tiny tensors threads wait for each other more than they compute
