"""The device of networks: what is accepted, what wins, and what is refused before anything is read."""

import json

import pytest

import labelwise as lw
from cli.commands import labelwise
from labelwise.errors import ConfigError
from labelwise.runtime.device import requested_device, using_device

torch = pytest.importorskip("torch")


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that torch sees two GPUs."""
    chosen = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    return chosen


def device():
    from labelwise.runtime.device import computing_device

    return str(computing_device())


def test_python_wins_over_the_environment(monkeypatch):
    assert requested_device() == "auto"
    monkeypatch.setenv("LABELWISE_DEVICE", "cuda")
    assert requested_device() == "cuda"
    lw.set_device("cpu")
    assert (requested_device(), device()) == ("cpu", "cpu")
    with using_device("cuda:1"):
        assert requested_device() == "cuda:1"
    lw.set_device(None)
    assert requested_device() == "cuda"
    with pytest.raises(ConfigError, match="torch finds no CUDA GPU"):
        device()


def test_one_gpu_of_several(gpus, monkeypatch):
    assert device() == "cuda"
    with using_device("cpu"):
        assert device() == "cpu"
    with using_device("cuda:1"):
        assert device() == "cuda:1"
        assert str(gpus[-1]) == "cuda:1"  # the current one
        monkeypatch.setenv("LOCAL_RANK", "0")
        with pytest.raises(ConfigError, match="each rank has its own GPU"):
            device()
        monkeypatch.delenv("LOCAL_RANK")
    with using_device("cuda:2"), pytest.raises(ConfigError, match="has 2 GPUs, cuda:0 to cuda:1"):
        device()


@pytest.mark.parametrize(("name", "message"), [("gpu", "accepted are auto"), ("mps", "float64"), ("cuda:x", "cuda:1")])
def test_other_names_are_refused(name, message, monkeypatch):
    with pytest.raises(ConfigError, match=message):
        lw.set_device(name)
    monkeypatch.setenv("LABELWISE_DEVICE", name)
    with pytest.raises(ConfigError, match="LABELWISE_DEVICE"):
        requested_device()


@pytest.fixture
def config(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "a b", "labels": ["x"]}) + "\n", encoding="utf-8")

    def write(method, **run):
        path = tmp_path / "run.yml"
        values = {"data": {"train": str(tmp_path / "train.jsonl")}, "model": {"method": method}, "run": run}
        path.write_text(json.dumps({**values, "run": {"folder": str(tmp_path / "run"), **run}}), encoding="utf-8")
        return path

    return write


def test_a_run_refuses_a_device_before_it_reads_data(config, tmp_path):
    for method, wanted, message in (
        ("mach", "cuda", "torch finds no CUDA GPU here; use cpu or auto"),
        ("linear_flat", "cuda:1", "run.device: linear_flat computes on the CPU"),
        ("mach", "tpu", "run.device: accepted are auto"),
    ):
        assert message in labelwise("train", config(method, device=wanted), code=2).err
    assert not (tmp_path / "run").exists()
    labelwise("train", config("popularity", device="cpu", report=False))
    assert json.loads((tmp_path / "run" / "machine.json").read_text(encoding="utf-8"))["device"] == "cpu"


def test_seeds_reach_the_generator_of_the_cpu_alone(gpus, monkeypatch):
    from labelwise.runtime.device import seeded

    def refuse(*_):
        pytest.fail("the generators of GPUs are read or seeded")

    for name in ("manual_seed", "manual_seed_all", "get_rng_state", "set_rng_state"):
        monkeypatch.setattr(f"torch.cuda.{name}", refuse)
    torch.default_generator.manual_seed(5)
    expected = torch.rand(4)
    torch.default_generator.manual_seed(5)
    drawn = []
    for _ in range(2):
        with seeded(3):
            drawn.append(torch.rand(4))
    assert torch.equal(drawn[0], torch.rand(4, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(torch.rand(4), expected), "what follows is as if nothing had been drawn"


def test_networks_draw_their_weights_by_a_seed_without_touching_gpus(gpus, monkeypatch):
    from labelwise.nn.config import EncoderConfig, FaceNetworkConfig, RecurrentConfig
    from labelwise.nn.images.faces import make_face_network
    from labelwise.nn.text.transformer import open_encoder
    from labelwise.nn.words.recurrent import RecurrentEncoder
    from labelwise.strings import Strings

    monkeypatch.setattr("torch.manual_seed", lambda seed: pytest.fail("seeds GPUs as well"))
    face = FaceNetworkConfig(network="r10", width_factor=0.125, dimension=8)
    for new in (
        lambda seed: RecurrentEncoder(torch.zeros(5, 4), False, RecurrentConfig(width=8), seed),
        lambda seed: make_face_network(face, 3, 16, seed),
        lambda seed: open_encoder(EncoderConfig(model="tiny"), Strings.of(["a text"]), seed),
    ):
        one, same, other = (list(new(seed).parameters()) for seed in (1, 1, 2))
        assert all(torch.equal(mine, its) for mine, its in zip(one, same, strict=True))
        assert not all(torch.equal(mine, its) for mine, its in zip(one, other, strict=True))
