# SPDX-License-Identifier: MIT
"""DALI: pictures decoded and changed, its own pools off (DALI_USE_VMM=0,
DALI_USE_DEVICE_MEM_POOL=0)."""
import atexit
import os
import shutil
import tempfile

import cupy as cp
import cv2
import numpy as np
from nvidia import dali
from nvidia.dali import fn

from common import main, near, step

folder = tempfile.mkdtemp()
atexit.register(shutil.rmtree, folder)
rng = np.random.RandomState(0)
os.mkdir(os.path.join(folder, "0"))
for i in range(64):
    small = rng.randint(0, 255, (12, 16, 3), dtype=np.uint8)
    picture = cv2.resize(small, (320 + 8 * i, 240 + 5 * i),
                         interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(os.path.join(folder, "0", f"{i:03}.jpg"), picture)


@dali.pipeline_def(batch_size=32, num_threads=4, device_id=0, seed=7)
def made():
    files, labels = fn.readers.file(file_root=folder, random_shuffle=True,
                                    seed=3)
    x = fn.decoders.image(files, device="mixed")
    x = fn.rotate(x, angle=fn.random.uniform(range=(-30, 30), seed=5),
                  fill_value=0)
    x = fn.random_resized_crop(x, size=(224, 224), seed=9)
    x = fn.gaussian_blur(x, window_size=5)
    return fn.crop_mirror_normalize(x, mean=[128] * 3, std=[64] * 3), labels


pipeline = made()
pipeline.build()


@step(100)
def batch():
    pictures, _ = pipeline.run()
    return near(cp.abs(cp.asarray(pictures.as_tensor())).mean(), 3)


main()
