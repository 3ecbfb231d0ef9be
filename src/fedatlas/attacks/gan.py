"""The GAN attack (A2): a client trains a generator against the models it is sent, to draw pictures of classes that others hold.

It only observes: the models of its view are what it needs, so the generator is the one that it could have trained during the run. In
each round in which it was sent a model it trains on for some steps, with its own rows as the real ones (`generator`).

The placebo is the class of nobody: the same training, with the same random numbers, for a further class whose output is that of a
network nobody trained. Without a target, the placebo is trained against such a network in place of the federation's. Several pairs of
generators are trained, since two generators of one kind differ by chance, each placebo with a network of its own, since networks that
know nothing differ by chance, too. A leak is claimed over pairs, and only beyond what one more such network would give.

role: the role whose view is attacked: "client:3".

Source: Hitaj, Ateniese, Perez-Cruz, CCS 2017, in the passive form of the seed's thesis.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.generator import LATENT, Drawer, Sought, layers_of
from fedatlas.attacks.inversion import NEEDS_CLASSES, loss_of, psnr
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.view_attack import Arrays, Knowledge, Picture, Score, Truth, ViewAttack, measured
from fedatlas.errors import ConfigError
from fedatlas.metrics.intervals import Interval
from fedatlas.metrics.quality import Floats
from fedatlas.registry import Count, Whole
from fedatlas.rng import derive, numpy_stream, torch_stream

Mode = Literal["thesis", "hitaj"]
Target = Count | Literal["absent"] | None

NAME = "gan"
FIGURES = {
    "psnr": "PSNR in dB against the nearest row",
    "fid": "distance of the pictures from real ones (FID or FID-proxy)",
    "kid": "the same by a kernel (KID)",
}
SHOWN = 16  # pictures of the last round in the report
TILE = 4  # pictures of a round in the report
NEAR = 5000  # most rows among which the nearest is sought
LATE = "it trains generators for minutes, so it is tried only where the file declares it"
KINDS = ("drawn", "placebo")
HOW: Mapping[Mode, str] = {
    "thesis": "passive: it follows the protocol and computes beside or afterwards",
    "hitaj": "what a client under gan_active draws, trained again from its view",
}


def gan(
    *,
    role: str = "client:0",
    mode: Mode = "thesis",
    target: Target = None,
    head_only: bool = False,
    steps: Whole = 300,
    selections: Count = 10,
    generators: Whole = 4,
    pictures: Whole = 500,
    features: str = "",
) -> ViewAttack:
    """GAN attack (Hitaj et al. 2017), passive: a client trains a generator against the models it is sent, to draw others' classes.

    Source: A2, in the form of the seed's thesis; DCGAN generators.

    role: the attacking client, "client:3".
    mode: "thesis" = as above; "hitaj" = the generators of `gan_active`, trained only to be taken for the target.
    target: class to draw, by number, of which the attacker has no row; "absent" = the first such class; default: none, as in the thesis.
    head_only: of the copied model train only the added unit, and not the whole copy.
    steps: steps of generator and discriminator in each round in which the attacker was sent a model.
    selections: at most this many of these rounds, spread evenly; 0 = all.
    generators: pairs of a generator and its placebo.
    pictures: pictures drawn after each of the rounds, and compared with as many real rows.
    features: file of Inception weights, or of an FID-proxy; default: the proxy of the run's rows.
    """
    whose = ViewRole.parse(role, "attack.role")
    how = GanPlan(target, head_only, steps, selections, generators, pictures, mode)
    return ViewAttack(
        NAME,
        "reconstruction",
        whose,
        {**how._asdict(), "features": features},
        Declaration(
            who="insider: a client that trains like any other",
            how=HOW[mode],
            when="training: each round in which it is sent a model",
            where="the models that it is sent",
            why="class representatives: pictures of rows that others hold",
            knowledge="the network, the range of a pixel, its own rows",
            budget=f"{2 * generators} generators, {steps} steps in each of {selections or 'all'} rounds",
        ),
        answer=lambda known: _answer(known, whose, how),
        score=lambda truth, answer: _score(truth, answer, whose, how, features),
        figures=FIGURES,
        leak="psnr",
        pictures=_pictures,
        thing="generator",
        roles=("client",),
        rounds=(1, 0),
        refuses=lambda config: _unsuited(config, how),
        files=(own_file(whose),),
        draws=lambda truth: {own_file(whose): _own(truth, whose, how, features)},
        late=LATE,
    )


class GanPlan(NamedTuple):
    """The keys that say how the attacker works."""

    target: Target
    head_only: bool
    steps: int
    selections: int
    generators: int
    pictures: int
    mode: Mode = "thesis"


def own_file(role: ViewRole) -> str:
    """Return the name of the file with the attacker's rows."""
    return f"{role.folder}.npz"


def _unsuited(config: Any, how: GanPlan) -> str:
    if how.target is not None and loss_of(config) not in ("auto", "cross_entropy"):
        return f"attack '{NAME}' with a target {NEEDS_CLASSES}"
    if how.mode == "hitaj" and (how.target is None or how.head_only or not getattr(config.model.loss, "fake", None)):
        return f"attack '{NAME}' with mode = 'hitaj' needs a target, model.loss.fake = true, and no head_only."
    if config.data.scale == "client":
        return f"attack '{NAME}' needs one range of pixels for all clients: use data.scale = 'auto'."
    return ""


def _own(truth: Truth, role: ViewRole, how: GanPlan, file: str) -> Arrays:
    """Return the attacker's rows and the place of its target, -1 for none. ConfigError for whatever the attack would fail by later."""
    if file:
        from fedatlas.metrics.image_features import read_source

        read_source(file)
    rows = truth.rows(role.client or 0)
    layers_of(tuple(rows.x.shape[1:]))
    if not rows.n:
        raise ConfigError(f"attack '{NAME}': {role} holds no rows, and needs some as real ones; name another client.")
    real_rows(truth, role, how)
    return {"x": rows.x.numpy(), "target": np.array(sought_class(how.target, rows.y, truth.classes, role))}


def sought_class(target: Target, y: Tensor, classes: int, role: ViewRole) -> int:
    """Return the class to draw, -1 for none. ConfigError for one that does not exist, or of which the attacker has rows ``y``."""
    lacks = sorted(set(range(classes)) - set(y.tolist()))
    if target is None:
        return -1
    if target == "absent":
        if not lacks:
            raise ConfigError(f"attack '{NAME}': {role} has rows of every class; leave target out.")
        return lacks[0]
    if target >= classes:
        raise ConfigError(f"attack '{NAME}': there is no class {target}; they are 0 to {classes - 1}.")
    if target not in lacks:
        raise ConfigError(f"attack '{NAME}': {role} has rows of class {target}; name a class that only others hold.")
    return target


# ---------------------------------------------------------------------- in the attacker's process


class GanAttacker:
    """The attacker with its generators, which stay over the rounds: told the models as they come, or afterwards."""

    def __init__(
        self,
        network: nn.Module,
        nobody: Callable[[int], nn.Module],
        own: Tensor,
        box: tuple[Tensor, Tensor],
        how: GanPlan,
        seed: int,
    ) -> None:
        """``nobody``: pair -> a network that nobody trained, for its placebo."""
        self.network, self.own, self.how = network, own, how
        self.nobody = [nobody(i).requires_grad_(False) for i in range(how.generators)]
        shape = tuple(own.shape[1:])
        streams = [(i, torch_stream(seed, "attack", NAME, i)) for i in range(how.generators) for _ in KINDS]
        made = [Drawer(shape, box, stream) for _, stream in streams]
        self.pairs = list(zip(made[::2], made[1::2], strict=True))
        self.z = torch.randn((how.pictures, LATENT), generator=torch_stream(seed, "attack", NAME, "pictures"))

    def told(self, model: Mapping[str, Tensor], target: int) -> None:
        """Train all generators against a model. ConfigError if it is not of the run's network."""
        told = copy.deepcopy(self.network)
        try:
            told.load_state_dict({**told.state_dict(), **model})
        except RuntimeError:
            raise ConfigError(
                f"attack '{NAME}' copies the run's network, and the models in the view have other weights."
            ) from None
        told.requires_grad_(False)
        alone = target < 0
        sought = None if alone else Sought((told,), target)
        for (real, placebo), other in zip(self.pairs, self.nobody, strict=True):
            nobody = None if alone else Sought((told, _First(other)), -1)
            if self.how.mode == "hitaj" and sought is not None and nobody is not None:
                real.seek(sought, self.how.steps)
                placebo.seek(nobody, self.how.steps)
                continue
            real.train(told, self.own, self.how.steps, head_only=self.how.head_only, sought=sought)
            against = other if alone else told
            placebo.train(against, self.own, self.how.steps, head_only=self.how.head_only, sought=nobody)

    def drawn(self) -> Arrays:
        """Return what the generators draw now, and their placebos: uint8 (T, N, channels, h, w)."""
        each = [
            [(one.draw(self.z) * 255).round().to(torch.uint8) for one in side] for side in zip(*self.pairs, strict=True)
        ]
        return {kind: torch.stack(found).numpy() for kind, found in zip(KINDS, each, strict=True)}


class _First(nn.Module):
    """The first output of a network."""

    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.of(x)
        return outputs[:, :1]


def seed_of_nobody(seed: int, pair: int) -> int:
    """Return the seed of the network that nobody trained, of a pair of generators."""
    return derive(seed, "attack", NAME, "nobody", *([pair] if pair else []))


def _answer(known: Knowledge, role: ViewRole, how: GanPlan) -> Arrays:
    """Return round (R,), and drawn, placebo (R, T, N, channels, h, w), uint8. ConfigError for rows that are no pictures."""
    layers_of(known.shape)
    if how.target is not None and known.loss.name != "cross_entropy":
        raise ConfigError(f"attack '{NAME}' with a target {NEEDS_CLASSES}")
    own = known.arrays(own_file(role))
    one = GanAttacker(
        known.network(known.seed),
        lambda pair: known.network(seed_of_nobody(known.seed, pair)),
        torch.from_numpy(own["x"]),
        known.box(),
        how,
        known.seed,
    )
    found: dict[str, list[Any]] = {"round": [], **{kind: [] for kind in KINDS}}
    for number, model in known.models(how.selections):
        one.told(model, int(own["target"]))
        found["round"].append(number)
        for kind, drawn in one.drawn().items():
            found[kind].append(drawn)
    return {key: np.stack(each) for key, each in found.items()}


# ---------------------------------------------------------------------- scored by a holder of the data


class Likeness(NamedTuple):
    """How like real rows some pictures are."""

    psnr: float
    fid: float
    kid: float


def _score(truth: Truth, answer: Arrays, role: ViewRole, how: GanPlan, file: str) -> Score:
    from fedatlas.attacks.picture_features import source_of  # with scipy, which takes time to import
    from fedatlas.metrics.frechet import frechet_distance, kernel_distance
    from fedatlas.metrics.image_features import features, source_sentence

    real, source = real_rows(truth, role, how), source_of(truth, file)
    said = source_sentence(source)
    many = min(len(real), answer["drawn"].shape[2])
    real = real[
        torch.from_numpy(numpy_stream(truth.seed, "attack", NAME, "real").permutation(len(real))[: max(NEAR, many)])
    ]
    known = features(real[:many], source)

    def likeness(pictures: np.ndarray) -> Likeness:
        x = torch.from_numpy(pictures).float() / 255
        seen = features(x[:many], source)
        return Likeness(float(nearest(x, real)[1].mean()), frechet_distance(known, seen), kernel_distance(known, seen))

    by_round = {kind: np.array([[likeness(one) for one in each] for each in answer[kind]]) for kind in KINDS}
    arrays = {f"{kind}_{name}": x[..., i] for kind, x in by_round.items() for i, name in enumerate(Likeness._fields)}
    return Score(
        *figures_of(*(by_round[kind][-1] for kind in KINDS)),
        how.generators,
        {
            **arrays,
            **_kept(answer, real),
            "round": answer["round"],
        },
        (said[:1].upper() + said[1:],),
    )


def real_rows(truth: Truth, role: ViewRole, how: GanPlan) -> Tensor:
    """Return the rows to compare with, (M, channels, h, w) in pixels: others', of the class sought, or of those that the attacker lacks."""
    from fedatlas.attacks.picture_features import in_pixels

    own = truth.rows(role.client or 0)
    target = sought_class(how.target, own.y, truth.classes, role)
    others = [truth.rows(k) for k, n in truth.sizes.items() if n and k != role.client]
    x, y = (torch.cat([getattr(rows, part) for rows in others]) for part in ("x", "y"))
    lacks = sorted(set(range(truth.classes)) - set(own.y.tolist())) or list(range(truth.classes))
    kept = torch.isin(y, torch.tensor([target] if target >= 0 else lacks))
    if int(kept.sum()) < 2:
        raise ConfigError(f"attack '{NAME}': nobody but {role} holds two rows of class {target}; name another class.")
    return in_pixels(x[kept].float(), truth)


def nearest(pictures: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each picture (N, ...) the place of the nearest of the rows (M, ...), and the PSNR against it in dB."""
    place = torch.cdist(pictures.flatten(1).double(), real.flatten(1).double()).argmin(1)
    return place, psnr(pictures, real[place])


def figures_of(found: Floats, placebo: Floats) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return metrics and leaks of likeness (T, 3) of generators and of their placebos. Intervals are Student's, over the pairs.

    All generators share the model, whose chance no interval over pairs holds. So ``beyond`` is the half width of the interval for one
    more placebo: a model that knows nothing lies above it in 2.5% of cases, since its network is drawn like theirs. ``error`` is the
    standard error that an audit reckons with: of the pairs or of one more placebo, whichever is larger.
    """
    metrics = {}
    for i, name in enumerate(Likeness._fields):
        metrics[name] = measured(of_few(found[:, i]), float(placebo[:, i].mean()))
    leaks = {}
    for i, name, better in ((0, "psnr", found[:, 0] - placebo[:, 0]), (1, "fid", placebo[:, 1] - found[:, 1])):
        leaks[name] = dict(zip(("value", "low", "high"), of_few(better), strict=False))
        leaks[name] |= chance(better, placebo[:, i])
        if (beyond := leaks[name]["beyond"]) is not None:
            usual = float(placebo[:, i].mean())
            metrics[name] |= {"placebo_low": usual - beyond, "placebo_high": usual + beyond}
    return metrics, leaks


def of_few(values: Floats) -> Interval:
    """Return the mean of a few values with its 95% interval by Student's t; of one value there is none."""
    mean, n = float(values.mean()), len(values)
    if n < 2:
        return Interval(mean, None, None, 0.95)
    half = width(n) * float(values.std(ddof=1)) / n**0.5
    return Interval(mean, mean - half, mean + half, 0.95)


def chance(better: Floats, placebo: Floats) -> dict[str, float | None]:
    """Return ``beyond`` and ``error`` of a leak from its pairs (T,) and the placebos' figures (T,); none of one pair."""
    n = len(placebo)
    if n < 2:
        return {"beyond": None, "error": None}
    another = float(placebo.std(ddof=1)) * (1 + 1 / n) ** 0.5
    return {"beyond": width(n) * another, "error": max(another, float(better.std(ddof=1)) / n**0.5)}


def width(n: int) -> float:
    """Return the half width of a 95% interval of n values, in standard errors."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.975))


def _kept(answer: Arrays, real: Tensor) -> Arrays:
    """Return the pictures of the report, of the first pair: some of each round, and those of the last round with the nearest rows."""
    tiles = {f"{kind}_tile": answer[kind][:, 0, :TILE] for kind in KINDS}
    last = answer["drawn"][-1, 0, :SHOWN]
    place, found = nearest(torch.from_numpy(last).float() / 255, real)
    return {**tiles, "last": last, "nearest": real[place].numpy(), "last_psnr": found.numpy()}


def _pictures(arrays: Arrays) -> list[Picture]:
    """Return the pictures by round above the placebo's, and those of the last round above the nearest rows."""
    text = "round {}: {:.1f} dB, placebo {:.1f} dB"
    means = [arrays[f"{kind}_psnr"].mean(1).tolist() for kind in KINDS]
    rounds = arrays["round"].tolist()
    tiles = zip(*(arrays[f"{kind}_tile"] for kind in KINDS), rounds, *means, strict=True)
    by_round = [(_tiled(one), _tiled(other), text.format(*said)) for one, other, *said in tiles]
    last = [
        (one / 255, row, f"{value:.1f} dB")
        for one, row, value in zip(arrays["last"], arrays["nearest"], arrays["last_psnr"].tolist(), strict=True)
    ]
    each = [f"{kind}_{name}" for kind in KINDS for name in Likeness._fields]
    rows = [(n, *(float(arrays[key][i].mean()) for key in each)) for i, n in enumerate(rounds)]
    how = (
        "Four pictures of the attacker's generator after each round in which it trained, earliest on the left, above those of the "
        "placebo from the same noise: the class of nobody. What both show comes from the attacker's own rows."
    )
    beside = "Pictures of the generator after the last round, above the rows of other clients that are nearest to them."
    return [
        Picture(
            "pairs",
            "rounds",
            "Pictures by round",
            "Pictures above the placebo's",
            how,
            ("round", *each),
            rows,
            ("drawn", "placebo"),
            by_round,
        ),
        Picture(
            "pairs",
            "nearest",
            "Pictures and nearest rows",
            "Pictures above the nearest rows",
            beside,
            ("picture", "psnr"),
            list(enumerate(arrays["last_psnr"].tolist())),
            ("drawn", "nearest row"),
            last,
        ),
    ]


def _tiled(pictures: np.ndarray) -> np.ndarray:
    """Return four pictures (4, channels, h, w) as one (channels, 2 h, 2 w), from 0 to 1; fewer are repeated."""
    four = np.resize(pictures, (TILE, *pictures.shape[1:])) / 255
    return np.concatenate([np.concatenate([four[i], four[i + 1]], 2) for i in (0, 2)], 1)
