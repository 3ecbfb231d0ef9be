"""[[privacy]] of an experiment file: its tables, overrides, pairs, and what they refuse beside them, before data are read."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

from configured import set_up
from fedatlas import config
from fedatlas.api import longer
from fedatlas.config.template import TEMPLATE
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.privacy.mechanisms import MECHANISMS, made
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.baselines import baseline_config
from fedatlas.setup import mechanism_choice
from fedatlas.setup.resolution import resolve

WRITTEN = {
    "secagg": {"threshold": 0.8, "bits": 20, "range": 8.0, "n_cap": 4096, "neighbours": 60},
    "two_server": {"bits": 20, "range": 8.0, "n_cap": 4096},
    "paillier": {
        "key_bits": 3072,
        "bits": 29,
        "range": 4.0,
        "encrypt": ["0.weight", "0.bias"],
        "weights_by": "client",
        "short_exponent": 640,
        "reveal": "server",
    },
    "bfv": {"bits": 20, "range": 4.0, "encrypt": "output", "weights_by": "server"},
    "ckks": {"range": 2.0, "encrypt": ["0.weight", "0.bias"]},
    "threshold_paillier": {"key_bits": 3072, "bits": 20, "range": 4.0, "weights_by": "server", "short_exponent": 512},
    "central_dp": {
        "clip": "adaptive",
        "noise_multiplier": 1.5,
        "delta": 1e-6,
        "noise": "seed",
        "quantile": 0.7,
        "clip_rate": 0.1,
        "first_clip": 1.0,
        "count_noise": 2.0,
    },
    "dp_ftrl": {"clip": 0.5, "noise_multiplier": 1.5, "delta": 1e-6, "restart": 2, "noise": "seed"},
    "local_dp": {"epsilon": 8.0, "delta": 1e-6, "clip": 0.5, "kind": "laplace", "noise": "seed"},
    "nbafl": {"epsilon": 50.0, "delta": 0.02, "clip": 2.0, "sensitivity": "worst_case", "noise": "seed"},
    "rotation": {"bounds": [0.0, 9.0], "scale": 0.2, "columns": ["a"], "noise": "seed"},
    "additive_noise": {"bounds": [0.0, 9.0], "kind": "gaussian", "scale": 0.2, "columns": ["a"], "noise": "seed"},
    "dp_sgd": {"clip": 0.5, "noise_multiplier": 1.5, "delta": 1e-6, "noise": "seed"},
    "distributed_dp": {
        "clip": 0.5,
        "noise_multiplier": 1.5,
        "delta": 1e-6,
        "threshold": 0.8,
        "colluding": 2,
        "bits": 12,
        "noise": "seed",
    },
    "anonymise": {
        "quasi": ["a"],
        "sensitive": ["label"],
        "k": 7,
        "l": 1.5,
        "t": 0.5,
        "diversity": "entropy",
        "boundaries": "local",
        "bounds": {"a": [0.0, 9.0]},
        "bins": 16,
    },
    "randomised_response": {"epsilon": 2.0, "classes": ["a", "b"], "columns": {"c": ["d", "e"]}, "noise": "seed"},
}
"""Every key of every mechanism, at another value than its default."""
NOISY = ("central_dp", "dp_ftrl", "local_dp", "nbafl")
LEAST = {
    "secagg": "privacy.secagg={}",
    "paillier": "privacy.paillier={}",
    "two_server": "privacy.two_server={}",
    "threshold_paillier": "privacy.threshold_paillier={}",
    "bfv": "privacy.bfv={}",
    "ckks": "privacy.ckks={}",
    "central_dp": "privacy.central_dp.clip=1.0",
    "dp_ftrl": "privacy.dp_ftrl={}",
    "local_dp": "privacy.local_dp={epsilon=8.0, clip=1.0}",
    "nbafl": "privacy.nbafl={epsilon=50.0, clip=1.0}",
    "rotation": "privacy.rotation.bounds=[0, 1]",
    "additive_noise": "privacy.additive_noise.bounds=[0, 1]",
    "dp_sgd": "privacy.dp_sgd.clip=1.0",
    "distributed_dp": "privacy.distributed_dp.clip=1.0",
    "anonymise": "privacy.anonymise.quasi=['age']",
    "randomised_response": "privacy.randomised_response={epsilon=1.0, classes=['a', 'b']}",
}
"""Each with what has to be given."""
ON_ROWS = [name for name in MECHANISMS if made(name).acts_on == "rows"]
HIDING = [name for name in MECHANISMS if made(name).sums_only and made(name).noise is None]


PACKAGES = {"dp_accounting": "dp-accounting", "seal": "seal-python"}


def refusal(*overrides: str) -> str:
    with pytest.raises(FedatlasError) as error:
        set_up(config.read(None, overrides), 1)
    assert "\n" not in str(error.value)
    return str(error.value)


def names(*overrides: str) -> list[str]:
    return [one.name for one in mechanism_choice.mechanisms_of(config.read(None, overrides))]


def as_held(x: object) -> object:
    """A value of a file as a record holds it."""
    if isinstance(x, dict):
        return {key: as_held(one) for key, one in x.items()}
    return tuple(x) if isinstance(x, list) else x


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_table_comes_back_from_config_toml(name: str, tmp_path: Path) -> None:
    asked = resolve(config.parse({"privacy": [{"name": name, **WRITTEN[name]}]})).config
    again = RunFolder.create(tmp_path / "run", asked).config()
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["privacy"] == [{"name": name, **WRITTEN[name]}]
    assert again.hash() == asked.hash()
    assert again.plain() == asked.plain()
    (one,) = mechanism_choice.mechanisms_of(again)
    assert one.name == name
    assert one.keys == {**dict.fromkeys(one.keys), **{key: as_held(x) for key, x in WRITTEN[name].items()}}


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_default_is_written_out(name: str) -> None:
    once = resolve(config.read(None, [LEAST[name]]))
    (table,) = once.config.plain()["privacy"]
    keys = {key: list(x) if isinstance(x, tuple) else x for key, x in once.mechanisms[0].keys.items()}
    assert table == {"name": name} | {key: x for key, x in keys.items() if x is not None}
    assert resolve(config.parse(once.config.plain())).config.hash() == once.config.hash()


def test_without_a_table_hash_and_file_are_what_they_were() -> None:
    plain = config.parse({})
    assert "privacy" not in plain.plain()
    assert "constants" not in plain.plain()["data"]
    assert config.parse({"privacy": []}).hash() == plain.hash()
    assert config.read(None, ["privacy.secagg={}"]).hash() != plain.hash()
    assert resolve(plain).mechanisms == ()


def test_overrides_reach_a_table_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text('[[privacy]]\nname = "secagg"\nbits = 20\n')

    def tables(*overrides: str) -> list[dict[str, object]]:
        return config.read(file, overrides).plain().get("privacy", [])

    assert tables("privacy.secagg.threshold=0.9") == [{"name": "secagg", "bits": 20, "threshold": 0.9}]
    assert tables("privacy.local_dp.clip=1.0", "privacy.local_dp.epsilon=4") == [
        {"name": "secagg", "bits": 20},
        {"name": "local_dp", "clip": 1.0, "epsilon": 4},
    ]
    assert tables("privacy.secagg={threshold=0.9}") == [{"name": "secagg", "threshold": 0.9}]
    assert tables("privacy=[]", "privacy.paillier={}") == [{"name": "paillier"}]
    assert names("privacy.secagg={}") == ["secagg"]
    for wrong, said in (
        ("privacy=secagg", "write privacy.secagg={}"),
        ("privacy.name=secagg", "write privacy.secagg={}"),
        ("privacy.secagg=yes", "write privacy.secagg={}, or a key after the name"),
        ("privacy.secagg.a.b=1", "a key after the name"),
    ):
        with pytest.raises(ConfigError) as error:
            config.read(file, [wrong])
        assert said in str(error.value)


def test_one_table_is_not_several() -> None:
    for values in ({"privacy": {"name": "secagg"}}, {"privacy": {"secagg": {}}}):
        with pytest.raises(ConfigError, match=r"write \[\[privacy\]\], one table per mechanism"):
            config.parse(values)
    with pytest.raises(ConfigError, match="privacy"):
        config.parse({"privacy": [{"threshold": 0.7}]})


def test_the_template_shows_a_table_that_works() -> None:
    lines = TEMPLATE.split("# [[privacy]]")[1].split("\n\n")[0].splitlines()
    text = "[[privacy]]\n" + "\n".join(line.removeprefix("# ") for line in lines[1:])
    (one,) = mechanism_choice.mechanisms_of(config.parse(tomllib.loads(text)))
    assert one.keys == {"threshold": 0.7, "bits": 24, "range": 16.0, "n_cap": 1 << 20, "neighbours": None}


# ---------------------------------------------------------------------- names, keys, pairs


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("privacy.secag={}", "unknown mechanism 'secag': did you mean 'secagg'?"),
        ("privacy.secagg.treshold=0.7", "did you mean 'privacy.secagg.threshold'?"),
        ("privacy.secagg.threshold=0.5", "privacy.secagg.threshold = 0.5: expected a number above 0.5."),
        ("privacy.paillier.key_bits=1024", "privacy.paillier.key_bits = 1024: expected 2048, 3072 or 4096"),
        ("privacy.central_dp={}", "privacy.central_dp.clip: this key is required."),
        ("privacy.local_dp.clip=1.0", "privacy.local_dp.epsilon: this key is required."),
        ("privacy.nbafl={epsilon=50, clip=true}", "privacy.nbafl.clip = true: expected a number"),
        ("privacy.paillier.encrypt=outermost:0", "expected 'all', 'output', 'outermost:N' or a list of parameters."),
        ("privacy.paillier.encrypt=[]", "an empty list encrypts nothing"),
        ("privacy.paillier.encrypt=outermost:2", "the network has 2 layers; write 'all' for the whole of it"),
        ("privacy.paillier.short_exponent=256", "privacy.paillier.short_exponent = 256: expected"),
        ("privacy.threshold_paillier.weights_by=nobody", "expected 'server' or 'client'"),
        ("privacy.paillier.bits=32", "privacy.paillier.bits = 32: sums of values of 32 bits need 64 bits each"),
        (
            "privacy.bfv={bits=30, weights_by='server'}",
            "privacy.bfv.bits = 30: sums of values of 30 bits need a plaintext",
        ),
        ("privacy.ckks={range=64.0}", "privacy.ckks.range = 64: 21 sums may be opened"),
        ("privacy.ckks.encrypt=outermost:0", "privacy.ckks.encrypt = 'outermost:0': expected 'all', 'output'"),
        ("privacy.secagg={bits=40, n_cap=33554432}", "n_cap = 1398101 holds"),
    ],
)
def test_a_wrong_name_or_key_is_one_sentence(override: str, said: str) -> None:
    assert said in refusal(override)


PAIRS = [(one, other) for i, one in enumerate(MECHANISMS) for other in list(MECHANISMS)[i + 1 :]]
SOUND = {(name, noise) for name in HIDING for noise in ("local_dp", "dp_sgd")} | {("secagg", "central_dp")}
SOUND |= {
    (a, b) for a, b in PAIRS if b in ON_ROWS and not (a in {*ON_ROWS, "nbafl", "dp_sgd"} and made(b).limits.alone)
}


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_pairs(one: str, other: str) -> None:
    """Noise of clients may stand before masks or encryption, central_dp before masks, whatever the order in the file; rows go with all."""
    asked = [LEAST[one], LEAST[other]]
    if (one, other) in SOUND:
        assert names(*asked) == names(*reversed(asked)) == sorted((one, other), key=lambda name: made(name).place)
        assert [
            table["name"]
            for table in resolve(config.read(None, [*asked, "algorithm.weights=uniform"])).config.plain()["privacy"]
        ] == [other, one]
        return
    assert "remove" in refusal(*asked)
    if {one, other} <= {*HIDING, "distributed_dp"}:
        assert "both hide updates from the server" in refusal(*asked)
    elif {one, other} == {"local_dp", "dp_sgd"}:
        assert "both add noise, and have no account in common" in refusal(*asked)
    elif one in {"nbafl", "dp_sgd"} and other == "anonymise":
        assert "one row changes what others of its client become" in refusal(*asked)
    else:
        alone = one if made(one).limits.alone else other
        assert f"'{alone}' cannot be combined" in refusal(*asked)


def test_twice_the_same_is_refused() -> None:
    assert "'secagg' is declared twice" in refusal("privacy=[{name='secagg'}, {name='secagg', bits=20}]")


@pytest.mark.parametrize(
    ("name", "module", "extra", "more"),
    [
        ("secagg", "cryptography", "he", ()),
        ("paillier", "gmpy2", "he", ()),
        ("paillier", "cryptography", "he", ()),
        ("threshold_paillier", "gmpy2", "he", ()),
        ("threshold_paillier", "cryptography", "he", ()),
        ("bfv", "seal", "he", ()),
        ("ckks", "tenseal", "he", ()),
        ("central_dp", "dp_accounting", "dp", ("cohort={sampling='poisson', fraction=0.5}",)),
        ("central_dp", "cryptography", "dp", ()),
        ("local_dp", "cryptography", "dp", ()),
        ("nbafl", "cryptography", "dp", ()),
    ],
)
def test_an_extra_that_is_missing_is_named(
    name: str, module: str, extra: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(mechanism_choice, "find_spec", lambda wanted: None if wanted == module else there(wanted))
    said = refusal(LEAST[name], *more)
    assert said == (
        f"privacy.name = '{name}' needs {PACKAGES.get(module, module)}, which is not installed: pip install \"fedatlas[{extra}]\"."
    )
    if name == "central_dp" and module == "dp_accounting":  # the closed form needs none
        assert names(LEAST[name]) == ["central_dp"]


# ---------------------------------------------------------------------- rounds


@pytest.mark.parametrize("name", MECHANISMS)
def test_rounds_count_where_the_noise_is_made_for_them(name: str, tmp_path: Path) -> None:
    def asked(rounds: int) -> config.ExperimentConfig:
        return config.read(None, [LEAST[name], f"rounds={rounds}"])

    folder = RunFolder.create(tmp_path / "run", asked(3))
    if name in {"nbafl", "local_dp"}:
        assert asked(3).hash() != asked(4).hash()
        with pytest.raises(ConfigError, match=f"the noise of '{name}' depends on the number of rounds"):
            longer(folder, ["rounds=5"])
    else:
        assert asked(3).hash() == asked(4).hash()
        assert longer(folder, ["rounds=5"]).rounds == 5


@pytest.mark.parametrize("baseline", ["local_only", "centralised"])
def test_baselines_run_without(baseline: str) -> None:
    asked = resolve(config.read(None, [LEAST["central_dp"], "algorithm.weights=uniform"])).config
    alone = baseline_config(asked, baseline, 2)
    assert alone.privacy == ()
    assert resolve(alone).mechanisms == ()


# ---------------------------------------------------------------------- what does not go beside

UNIFORM = "algorithm.weights=uniform"


@pytest.mark.parametrize(
    ("mechanism", "overrides", "said"),
    [
        *(
            (name, (f"compression.name={code}",), "its codes cannot be added up")
            for name in HIDING
            for code in ("topk", "qsgd", "float16")
        ),
        ("nbafl", ("compression.name=float16",), "adds noise to whole models"),
        ("nbafl", ("compression={name='clip', norm=1.0}",), "adds noise to whole models"),
        *(
            (name, ("evaluation.drift=true",), "it looks at each client's model")
            for name in MECHANISMS
            if name not in ON_ROWS
        ),
        *((name, ("data.missing=median",), "see client by client") for name in HIDING),
        *((name, ("data.missing=median",), 'set data.constants = "FILE.json"') for name in NOISY),
        *((name, ("data.scale=federated",), 'set data.constants = "FILE.json"') for name in NOISY),
        *((name, ("data.scale=client",), "computed from rows without noise") for name in NOISY),
        *((name, ("evaluation.on=validation", "stop.patience=2"), "cannot decide when to stop") for name in NOISY),
        *((name, ("model={name='mlp', norm='batch'}",), "statistics of batch norm") for name in NOISY),
        *((name, (f"model.bn={bn}",), "statistics of batch norm") for name in NOISY for bn in ("local", "recalibrate")),
        ("central_dp", ("cohort.fraction=0.5",), 'cohort.sampling = "poisson"'),
        ("central_dp", ("cohort.size=5",), 'cohort.sampling = "poisson"'),
        ("central_dp", ("cohort={fraction=0.0, sampling='poisson'}",), "nobody would ever take part"),
        ("distributed_dp", ("cohort.size=2",), "2 of 12 clients take part in a round"),
        (
            "distributed_dp",
            ("privacy.distributed_dp.colluding=6",),
            "of 12 clients asked, of whom 9 have to stay, 5 may collude",
        ),
        ("distributed_dp", ("privacy.distributed_dp.bits=26",), "privacy.distributed_dp.bits = 26: "),
        ("central_dp", ("cohort={fraction=0.5, sampling='passes'}",), 'cohort.sampling = "poisson"'),
        ("central_dp", ("privacy.central_dp.quantile=0.7",), 'quantile: a key of clip = "adaptive"'),
        ("central_dp", ("privacy.central_dp={clip='adaptive', count_noise=0.5}",), "set count_noise above 0.5"),
        (
            "central_dp",
            ("privacy.central_dp={clip='adaptive', noise_multiplier=1.2}",),
            "on the count of changes within",
        ),
        ("dp_ftrl", ("cohort.fraction=0.5",), 'write cohort.sampling = "passes"'),
        ("dp_ftrl", ("cohort.size=5",), 'write cohort.sampling = "passes"'),
        ("dp_ftrl", ("cohort={fraction=0.5, sampling='poisson'}",), 'write cohort.sampling = "passes"'),
        ("secagg", ("cohort.size=2",), "2 of 12 clients take part in a round"),
        ("secagg", ("cohort.fraction=0.2",), "raise cohort.fraction"),
        (
            "paillier",
            ("cohort.size=1",),
            "1 of 12 clients take part in a round, but a sum of fewer than 2 hides nothing; raise cohort.size",
        ),
        ("paillier", ("cohort.fraction=0.05",), "raise cohort.fraction"),
        ("two_server", ("cohort.size=2",), "a sum of fewer than 3 hides nothing"),
        ("paillier", ("partition.clients=1",), "partition.clients"),
        (
            "threshold_paillier",
            ("partition.clients=2",),
            "a sum of fewer than 3 hides nothing; raise cohort.fraction or partition.clients",
        ),
        *(
            ("threshold_paillier", (f"cohort={cohort}",), "so all of them take part in every round; remove the table.")
            for cohort in ("{fraction=0.9}", "{size=11}", "{sampling='poisson'}")
        ),
        (
            "threshold_paillier",
            ("failures.dropout=0.1",),
            "[failures] dropout: 'threshold_paillier' opens no sum without all clients",
        ),
        (
            "threshold_paillier",
            ("failures={stragglers=0.5, straggler_policy='drop'}", "local.epochs=3"),
            '[failures] straggler_policy = "drop": ',
        ),
        ("secagg", ("partition.clients=2", "cohort.sampling=poisson"), "fewer than 3 hides nothing"),
        ("secagg", ("partition={name='iid', clients=101}",), "masks at most 100; lower cohort.fraction"),
        (
            "secagg",
            ("partition={name='iid', clients=300}", "cohort={fraction=0.5, sampling='poisson'}"),
            "150 clients take part",
        ),
    ],
)
def test_what_does_not_go_beside_a_mechanism(mechanism: str, overrides: tuple[str, ...], said: str) -> None:
    weights = (UNIFORM,) if mechanism in {"central_dp", "dp_ftrl", "local_dp", "distributed_dp"} else ()
    assert said in refusal(LEAST[mechanism], *weights, *overrides)


@pytest.mark.parametrize(
    ("mechanism", "overrides"),
    [
        ("secagg", ("compression={name='clip', norm=1.0}",)),
        ("paillier", ("compression={name='clip', norm=1.0}", "model={name='mlp', norm='batch'}")),
        ("secagg", ("model={name='mlp', norm='batch', bn='recalibrate'}",)),
        ("secagg", ("cohort.size=3", "evaluation.on=validation", "stop.patience=2")),
        ("secagg", ("partition={name='iid', clients=100}",)),
        ("paillier", ("cohort.size=2",)),
        ("two_server", ("partition={name='iid', clients=150}", "model={name='mlp', norm='batch'}")),
        ("threshold_paillier", ("cohort.size=12", "failures.stragglers=0.5", "local.epochs=3")),
        (
            "central_dp",
            (
                "cohort={fraction=0.3, sampling='poisson'}",
                "failures={stragglers=0.5, straggler_policy='drop'}",
                "local.epochs=3",
            ),
        ),
        ("central_dp", ("cohort.size=12", "compression={name='topk', share=0.1}", "stop.patience=2")),
        ("local_dp", ("cohort.fraction=0.5", "compression.name=qsgd")),
        ("nbafl", ("cohort.fraction=0.5", "algorithm.name=fedprox")),
        ("central_dp", ("model={name='mlp', norm='group'}",)),
        ("central_dp", ("privacy.central_dp.clip=adaptive", "compression={name='topk', share=0.1}")),
        ("dp_ftrl", ("cohort={size=5, sampling='passes'}", "compression={name='topk', share=0.1}")),
        ("dp_ftrl", ("cohort.size=12",)),
    ],
)
def test_what_goes_beside_a_mechanism(mechanism: str, overrides: tuple[str, ...]) -> None:
    weights = (UNIFORM,) if mechanism in {"central_dp", "dp_ftrl", "local_dp", "distributed_dp"} else ()
    setup = set_up(config.read(None, (LEAST[mechanism], *weights, *overrides)), 1)
    assert [one.name for one in setup.checked.mechanisms] == [mechanism]


def test_what_is_said_of_a_mechanism() -> None:
    def notices(*overrides: str) -> str:
        return " ".join(set_up(config.read(None, overrides), 1).notices)

    assert "may have fewer than 3" in notices("privacy.secagg={}", "cohort={fraction=0.5, sampling='poisson'}")
    assert "may have fewer than 2" in notices("privacy.paillier={}", "cohort={fraction=0.5, sampling='poisson'}")
    assert "protects nobody" in notices("privacy.central_dp={clip=1.0, noise='seed'}", UNIFORM)
    assert "and no privacy" in notices("privacy.central_dp={clip=1.0, noise_multiplier=0.0}", UNIFORM)
    assert "sent in the clear" in notices("privacy.paillier.encrypt=output")
    for name in ("paillier", "threshold_paillier"):
        assert f"'{name}': short_exponent rests on one more assumption" in notices(f"privacy.{name}.short_exponent=512")
        assert "assumption" not in notices(f"privacy.{name}={{}}")
    assert notices("privacy.secagg={}", "privacy.local_dp={epsilon=8.0, clip=1.0}", UNIFORM) == notices()
