"""CIFAR-100's superclasses, and the pairs of classes across or inside them that the thesis attacks (A4).

Superclasses and the classes of each are in alphabetical order (Krizhevsky 2009, table of CIFAR-100).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fedatlas.attacks.labels import ClassPairs
from fedatlas.rng import numpy_stream

SUPERCLASSES = tuple(
    tuple(line.split())
    for line in """
    beaver dolphin otter seal whale
    aquarium_fish flatfish ray shark trout
    orchid poppy rose sunflower tulip
    bottle bowl can cup plate
    apple mushroom orange pear sweet_pepper
    clock keyboard lamp telephone television
    bed chair couch table wardrobe
    bee beetle butterfly caterpillar cockroach
    bear leopard lion tiger wolf
    bridge castle house road skyscraper
    cloud forest mountain plain sea
    camel cattle chimpanzee elephant kangaroo
    fox porcupine possum raccoon skunk
    crab lobster snail spider worm
    baby boy girl man woman
    crocodile dinosaur lizard snake turtle
    hamster mouse rabbit shrew squirrel
    maple_tree oak_tree palm_tree pine_tree willow_tree
    bicycle bus motorcycle pickup_truck train
    lawn_mower rocket streetcar tank tractor
    """.strip().splitlines()
)


def known(class_names: Sequence[str]) -> bool:
    """Return whether these are CIFAR-100's classes."""
    return set(class_names) == {name for names in SUPERCLASSES for name in names}


def drawn(which: Literal["extra_SC", "intra_SC"], class_names: Sequence[str], seed: int) -> ClassPairs:
    """Return ten pairs of classes by number: the first of each superclass, paired across; or two from each of ten superclasses."""
    number = {name: i for i, name in enumerate(class_names)}
    stream = numpy_stream(seed, "attack", "superclasses", which)
    if which == "extra_SC":
        firsts = [number[names[0]] for names in SUPERCLASSES]
        order = stream.permutation(firsts)
        return tuple((int(a), int(b)) for a, b in zip(order[::2], order[1::2], strict=True))
    chosen = sorted(int(i) for i in stream.permutation(len(SUPERCLASSES))[:10])
    pairs = (stream.permutation(SUPERCLASSES[i])[:2] for i in chosen)
    return tuple((number[str(a)], number[str(b)]) for a, b in pairs)
