"""The hash of a configuration, which checkpoints and summaries of runs hold, is what it was when those runs were begun."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from fedatlas.config import read
from fedatlas.setup.resolution import resolve


class Stored(NamedTuple):
    """A configuration as overrides of the default one, with its hash as it was read and as it is with every default written out."""

    overrides: tuple[str, ...]
    read: str
    whole: str


# Taken from the version before the house was rearranged (commit 4578932). A hash that changes makes runs that lie on people's disks
# foreign: they could not be resumed. It may change only with the meaning of a configuration, and CHANGELOG.md says so.
STORED = {
    "the default": Stored(
        (),
        "4460f1065414a17397dab0d90d610d7c8a298667b4e6b18b622fa3157f0a56b4",
        "3f69fa6fff2cd63591ba2943c021732e35001ac5f5c20b14bbd983a6364fe90c",
    ),
    "adaptive FedProx on skewed labels": Stored(
        (
            "algorithm={name='fedprox', mu=0.1, adaptive=true}",
            "partition={name='dirichlet', clients=12, alpha=0.3}",
            "seed=7",
        ),
        "8b879d2718cfad19afc9baf7cb149e13229b6a7ce9a4c9eca6fa79ff0b2491e2",
        "83201c4774c1e321ca5512a7094274b296c37aecd2225e7432f2396b7366e9ea",
    ),
    "SCAFFOLD with stragglers": Stored(
        (
            "algorithm={name='scaffold', option='I'}",
            "local.epochs=5",
            "failures={dropout=0.1, stragglers=0.2, straggler_policy='drop'}",
        ),
        "d78e10a2d29f6b0c681a7ea8c708a96e7694e0a8386dbd955027320587e58056",
        "043d411e598396c703c709111bc5976d5c91c3a5bc7e31bf3c0742c95b87029e",
    ),
    "FedDyn, compressed": Stored(
        (
            "algorithm={name='feddyn', alpha=0.05}",
            "compression={name='topk', share=0.05}",
            "local.weight_decay=1e-3",
        ),
        "957ba8112d3c471932700557ba7671d003b0aeebf6a327a150845b435dbc6480",
        "52d5df083e31cf65a746e495318a8766724f18752fca6b1111e0ffdea96966f4",
    ),
    "FedSGD, which fixes keys": Stored(
        (
            "algorithm.name=fedsgd",
            "cohort.fraction=0.5",
        ),
        "85d35b24036c28a16619197e8c5721440188c669d3947abf2c1121e4d30342ee",
        "bae0982c7e31181891b7050df49a5c32117306e7e4f16dab4ad472fa51f0aa33",
    ),
    "CFL, which fixes the cohort": Stored(
        (
            "algorithm={name='cfl', eps1=0.2}",
            "rounds=30",
        ),
        "0d2b612a6ada71121b88e8a86baa0ae4a25d7f9c3a6c6227f7319aa468e17fc7",
        "bee208f2d784ad86354540621b528e9717d34aa942b7d6ae40cf579d8374014f",
    ),
    "FedMD with models of their own": Stored(
        (
            "algorithm.name=fedmd",
            "models=[{name='mlp', hidden=[16], share=0.5}, {name='mlp', hidden=[32], share=0.5}]",
        ),
        "d8ee723948abe2937a05864f888d2cbf9826bf67c7b1df08e085e405b252e811",
        "b5c4398b960b8f9a5086c898ed8fe1d1d4e6f7615659b14b969ac0ecea134f9f",
    ),
    "FedSeq with a rule": Stored(
        (
            "algorithm={name='fedseq', rule={name='fedprox', mu=0.01}}",
            "cohort.size=4",
        ),
        "8c10db6865d092912f39d6b154ce0272ca5a9737717d94d7c50a2caf0eeca7fa",
        "f3b2c9d197f6b6c7d46da02e28088009d1a1fbe915b43c84e4976b7fe9dc4a0f",
    ),
    "Adam on a cosine": Stored(
        (
            "local={optimizer='adam', lr=0.001, schedule={name='cosine'}}",
            "rounds=40",
            "engine.precision='float64'",
        ),
        "6d3df7333f30ca866c6fe9b62919f1f8a2a0d909686c653f4856d096f61ee289",
        "b963974d473a17b8e70a2076499f59e6a5322f3e4ae23398c313837a8f487cfb",
    ),
    "batch norm that stays with its client": Stored(
        (
            "model={name='mlp', norm='batch', bn='local'}",
            "algorithm.name=fedavgm",
        ),
        "32237b046772f3b96471de860e020869d8ac932bedd497a4a8600d34ee5da880",
        "a8d730a5e5e01d1e4ff68bd6aa740d03c1c733301e42c13a7d43af923930e629",
    ),
    "several seeds, stopped early": Stored(
        (
            "seeds=[1, 2, 3]",
            "stop={accuracy=0.9}",
            "evaluation={on='validation', validation=0.2}",
        ),
        "9a7d925b176087488091da4f8ac4822650629321b50d32ac1e5e3a277a2842db",
        "cf7bc582755d4c858461d2e546d599f956d6b7dc89445ac6edb75d8b308df02f",
    ),
    "MNIST in shards by the loop": Stored(
        (
            "data={name='mnist', limit=2000, scale='none'}",
            "partition={name='shards', clients=20}",
            "engine.name='loop'",
        ),
        "ecc349e945e24b9f648ab69ad841400ed7d6bfb0f2adb30a67e2bd4c38bc63a6",
        "1d3e8997a2be18ac7731ec4e4bdd9585a75038761936ce7e6f9e6e62c39e06f0",
    ),
    "a table of one's own": Stored(
        (
            "data={name='file', path='rows.csv', label='y', missing='median'}",
            "partition={name='iid', clients=4}",
            "model={name='mlp', loss='auto'}",
        ),
        "4f8608c99615b7023dd5dd0af76bad0ceb232c67cf4e0d64f69f7c0e5c74e02e",
        "497b1b7b1f58bfacc6dba6a7a022458943866ac0f053a2c6d1d0ba6502f7ea88",
    ),
    "gossip on a ring": Stored(
        (
            "algorithm.name=gossip",
            "checkpoint={every=5, keep=1}",
        ),
        "f63a70cebdf26182d16ed57128ff7b34d2d4ba6231bb1e28669e3df27e5b920e",
        "bcb67e918511ea3712b6cc615b11de9dfee0cf5c502e07fa5b3c9d8718f530de",
    ),
}


@pytest.mark.parametrize("name", STORED)
def test_stored_configurations_keep_their_hash(name: str) -> None:
    stored = STORED[name]
    config = read(None, stored.overrides)
    assert config.hash() == stored.read
    assert resolve(config).config.hash() == stored.whole


def test_the_stored_configurations_are_told_apart() -> None:
    hashes = {value for stored in STORED.values() for value in (stored.read, stored.whole)}
    assert len(hashes) == 2 * len(STORED)
