"""Pictures that `breaching` finds: ``python breaching_pictures.py CASE.npz OUT STEPS DEVICE``, see inversion_common.py.

Its "invertinggradients" with its own constants but for the number of steps, on its ConvNet with the weights of the case, labels known,
batch norm in evaluation mode with the server's statistics. One file per picture, so that it can be stopped and started again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch

if (
    torch.version.cuda is None
):  # the wheel of torchvision that goes with a CPU build of torch may lack its compiled operators
    LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import breaching


def main(case: Path, out: Path, steps: int, device: str) -> None:
    """Attack all pictures of the case that are not there yet."""
    given = np.load(case)
    setup = {"dtype": torch.float, "device": torch.device(device)}
    data = breaching.get_case_config("1_single_image_small").data
    overrides = [f"optim.max_iterations={steps}", "optim.callback=100000"]
    attack = breaching.get_attack_config("invertinggradients", overrides=overrides)
    model, loss = breaching.cases.models.construct_model("ConvNet", data, pretrained=False)
    weights = [torch.from_numpy(given[f"w{number:02d}"]) for number in range(len(list(model.parameters())))]
    for place, value in zip(model.parameters(), weights, strict=True):
        place.data.copy_(value)
    for number, place in enumerate(model.buffers()):
        place.data.copy_(torch.from_numpy(given[f"b{number:02d}"]))
    model.to(**setup).eval()
    mean, std = (torch.tensor(list(one)).view(1, 3, 1, 1) for one in (data.mean, data.std))
    pixels, labels = torch.from_numpy(given["pixels"]), torch.from_numpy(given["labels"])
    for number, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        file = out / f"{number}.npz"
        if file.exists():
            continue
        x, y = ((picture[None] - mean) / std).to(**setup), label[None].to(setup["device"])
        gradients = torch.autograd.grad(loss(model(x), y), list(model.parameters()))
        parameters, buffers = [p.detach().clone() for p in model.parameters()], [b.clone() for b in model.buffers()]
        shared = {"num_data_points": 1, "labels": y, "local_hyperparams": None}
        torch.manual_seed(number)  # noqa: TID251  (it knows nothing of fedatlas)
        attacker = breaching.attacks.prepare_attack(model, loss, attack, setup)
        began = os.times()
        found, _ = attacker.reconstruct(
            [{"parameters": parameters, "buffers": buffers, "metadata": data}],
            [{"gradients": [g.detach() for g in gradients], "buffers": None, "metadata": shared}],
            {},
        )
        ended = os.times()
        seen = (found["data"].cpu() * std + mean).clamp(0, 1)
        spent = [sum(ended[:2]) - sum(began[:2]), ended[4] - began[4]]
        np.savez(file, found=seen[0].numpy(), seconds=np.array(spent))
        print(f"picture {number}: {spent[0]:.0f} s of processor time, {spent[1]:.0f} s", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
