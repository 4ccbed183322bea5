"""The recommender learns, however it is started and interrupted, and recommends the right films to the right person."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from project import Project, environment
from torch.nn import functional

from stoker.checkpoint import Checkpoint
from stoker.client.submit import jobfile

pytestmark = pytest.mark.timeout(300)  # importing torch takes long on a busy machine
NCF = Project("ncf")
FOLDER, program = NCF.folder, NCF.program
dataset, dropout, evaluate, learn, model, result, source, generate, recommend = NCF.modules(
    "dataset", "dropout", "evaluate", "learn", "model", "result", "source", "generate", "recommend"
)
SMALL = "generated:240x240x9600"  # learned in seconds
QUICK = (
    "--data", SMALL, "--epochs", "8", "--batch_size", "2048", "--learning_rate", "0.004", "--piece", "1024",
    "--factors", "16", "--layers", "64", "64", "32", "16", "--dropout", "0.2",
)  # fmt: skip
CHANCE = 10 / 101
LONGER = (*QUICK, "--epochs", "24")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    dataset.prepare(source.open_source(SMALL, folder), folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, str]:
    """One training with personal ratings, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "mine.csv").write_text("\n".join(f"{title}, {stars}" for title, stars in my_taste()), encoding="utf-8")
    said = program("train.py", *QUICK, "--cache", cache, "--ratings", "mine.csv", folder=folder, OMP_NUM_THREADS="1")
    return folder, said


def my_taste() -> list[tuple[str, float]]:
    """Science fiction is good, horror is not."""
    numbers = {genre: range(generate.GENRES.index(genre), 240, 12) for genre in ("Sci-Fi", "Horror")}
    good = [(generate.title_of(n), 4.5) for n in numbers["Sci-Fi"][:11]]
    return good + [(generate.title_of(n), 0.5) for n in numbers["Horror"][:9]]


def weights_of(file: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = result.Result.load(file).weights
    return weights


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def epochs(text: str) -> dict[int, str]:
    """The output of each epoch, except for its speed."""
    return {int(n): rest for n, rest in re.findall(r"epoch +(\d+)  (loss .*?)  [\d,]+ samples/s", text)}


# Mathematics


def test_gradients_are_those_of_the_plain_model() -> None:
    """The first layer in parts, masks of our own and pieces change how it is computed, not what."""
    torch.manual_seed(0)
    made = model.NeuMF(30, 40, 8, [16, 16, 8]).double()
    rng = np.random.default_rng(0)
    users, films = torch.from_numpy(rng.integers(0, 30, 50)), torch.from_numpy(rng.integers(0, 40, (50, 5)))
    loss = learn.learn(made, users, films, 50, 0.5, [1, 2, 3], learn.Seat())
    found = {name: parameter.grad.clone() for name, parameter in made.named_parameters()}
    made.zero_grad()
    masks, sizes = np.random.Generator(np.random.SFC64([1, 2, 3, 0])), (16, 8)

    def plain(x: torch.Tensor) -> torch.Tensor:
        drawn = masks.integers(0, 1 << 64, x.numel() // 8, dtype=np.uint64).view(np.uint8).reshape(x.shape)
        return torch.relu(x) * torch.from_numpy(drawn >= 128) * 2

    users, films = users.repeat_interleave(5), films.flatten()
    x = torch.cat([made.user_network(users), made.film_network(films)], dim=1)
    for layer, width in zip(made.layers, sizes, strict=True):
        x = plain(layer(x))
        assert x.shape[1] == width
    logits = made.last(torch.cat([made.user_factors(users) * made.film_factors(films), x], dim=1)).squeeze(1)
    expected = functional.binary_cross_entropy_with_logits(logits, torch.tensor([1.0, 0, 0, 0, 0]).repeat(50).double())
    torch.autograd.backward(expected)
    assert loss == pytest.approx(expected.item())
    for name, parameter in made.named_parameters():
        assert torch.allclose(found[name], parameter.grad, atol=1e-9), name


def test_dropout_drops_its_share_and_is_the_same_again() -> None:
    drop = dropout.Dropout(0.2, [1, 2])
    out = drop(torch.ones(1000, 64))
    assert out.mean().item() * drop.scale == pytest.approx(1, abs=0.01)
    assert torch.equal(out, dropout.Dropout(0.2, [1, 2])(torch.ones(1000, 64)))
    assert not torch.equal(out, dropout.Dropout(0.2, [1, 3])(torch.ones(1000, 64)))


def test_hit_rate_counts_ranks_and_gives_nothing_for_ties(cache: Path) -> None:
    found = dataset.prepare(source.open_source(SMALL, cache), cache)
    made = model.NeuMF(found.users, found.films, 4, [4, 4])
    for parameter in made.parameters():
        torch.nn.init.zeros_(parameter)
    hits, gains, users = evaluate.evaluate(made, found)
    assert (hits, gains, users) == (0, 0, len(found.test_users)), "everything the same finds nothing"
    torch.nn.init.normal_(made.user_factors.weight), torch.nn.init.normal_(made.film_factors.weight)
    torch.nn.init.ones_(made.last.weight)
    rank = []
    for user, film, negatives in zip(found.test_users, found.test_films, found.test_negatives, strict=True):
        score = made.film_factors.weight @ made.user_factors.weight[user]
        rank.append(int((score[negatives.tolist()] >= score[film]).sum()))
    expected = [1 / np.log2(place + 2) for place in rank if place < 10]
    hits, gains, _ = evaluate.evaluate(made, found)
    assert abs(hits - len(expected)) <= 1
    assert gains == pytest.approx(sum(expected), abs=0.4)
    shares = [evaluate.evaluate(made, found, part=slice(part, None, 2)) for part in range(2)]
    assert sum(share[0] for share in shares) == hits


# Learning


def test_it_learns_the_planted_taste(trained: tuple[Path, str], cache: Path) -> None:
    folder, said = trained
    held = result.Result.load(folder / "outputs" / "model.pt")
    assert held.metrics["hr@10"] > 5 * CHANCE, said
    again = json.loads(program("evaluate.py", "outputs/model.pt", "--cache", cache, folder=folder))
    assert again["hr@10"] == pytest.approx(held.metrics["hr@10"], abs=0.005)
    assert again["users"] == 240 - 1 or again["users"] == 240


def test_recommendations_are_unrated_films_of_your_taste_with_their_own_titles(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    said = program("recommend.py", "outputs/model.pt", folder=folder)
    rows = rows_of(folder / "outputs" / "predictions.csv")
    number = {generate.title_of(n): n for n in range(240)}
    assert all(int(row["movieId"]) == generate.film_id(number[row["title"]]) for row in rows), "no title is shifted"
    assert {row["title"] for row in rows}.isdisjoint({title for title, _ in my_taste()})
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    genres = [generate.genre_of(number[row["title"]]) for row in rows]
    assert genres[:9].count("Sci-Fi") >= 7, "nine are left"
    assert "Horror" not in genres[:20]
    assert said.splitlines()[1].split(". ", 1)[1].startswith(rows[0]["title"])
    assert any("," in row["title"] for row in rows), "which are quoted"
    shown = (folder / "outputs" / "recommendations.html").read_text(encoding="utf-8")
    assert re.findall(r"<span>(.*?)<br>", shown) == [row["title"] for row in rows[:30]]


def test_anyone_in_the_data_can_be_asked_for_and_nobody_else(trained: tuple[Path, str], cache: Path) -> None:
    path = trained[0] / "outputs" / "model.pt"
    held = result.Result.load(path)
    found = dataset.prepare(source.open_source(SMALL, cache), cache)
    row = recommend.row_of(held, 17, path)
    rated = recommend.rated_by(held, 17, None, cache, path)
    assert rated == set(found.film_ids[found.rated_by(row)].tolist()) and len(rated) >= 20
    assert {one.film_id for one in recommend.suggestions(held, row, rated)} == set(found.film_ids.tolist()) - rated
    with pytest.raises(recommend.Problem, match="knows no user 9999; whoever has fewer than 20 ratings is left out"):
        recommend.row_of(held, 9999, path)
    with pytest.raises(recommend.Problem, match="was trained on other data; name it with --data"):
        recommend.rated_by(held, 17, "generated:240x240x9000", cache, path)
    held.user_ids = held.user_ids[:-1]
    with pytest.raises(recommend.Problem, match="was trained without personal ratings; name a user, such as --user 1"):
        recommend.row_of(held, recommend.ME, path)


def test_a_model_saved_by_a_data_parallel_wrapper_can_be_used(trained: tuple[Path, str], tmp_path: Path) -> None:
    path = trained[0] / "outputs" / "model.pt"
    held = torch.load(path, weights_only=True)
    held["weights"] = {f"module.{name}": weight for name, weight in held["weights"].items()}
    torch.save(held, tmp_path / "wrapped.pt")
    plain, wrapped = (
        recommend.suggestions(result.Result.load(one), 240, set()) for one in (path, tmp_path / "wrapped.pt")
    )
    assert plain == wrapped
    (tmp_path / "broken.pt").write_bytes((tmp_path / "wrapped.pt").read_bytes()[:5000])
    with pytest.raises(recommend.Problem, match=r"broken.pt: is no model of train.py"):
        result.Result.load(tmp_path / "broken.pt")


def test_a_bad_personal_file_ends_before_anything_is_written(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "mine.csv").write_text("Silent Nebbula (2003), 5\n", encoding="utf-8")
    said = program("train.py", *QUICK, "--cache", cache, "--ratings", "mine.csv", folder=tmp_path, code=1)
    assert said.startswith(
        "error: mine.csv:1: no film is called `Silent Nebbula (2003)`; the nearest are `Silent Nebula"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


@pytest.mark.heavy
def test_a_target_ends_it_and_a_missed_one_is_a_failure(tmp_path: Path, cache: Path) -> None:
    quick = (*QUICK, "--cache", cache)
    said = program("train.py", *quick, "--target", 0.05, folder=tmp_path, OMP_NUM_THREADS="1")
    assert list(epochs(said)) == [1]
    said = program("train.py", *quick, "--epochs", 1, "--target", 1.1, folder=tmp_path, code=1, OMP_NUM_THREADS="1")
    assert said.endswith("error: the target, hr@10 >= 1.1, was not reached in 1 epochs\n")
    changed = program("train.py", *quick, "--seed", 2, folder=tmp_path, code=1)
    assert "--seed was 1 and is 2; to begin anew, move the checkpoints away" in changed


@pytest.mark.heavy
def test_two_processes_learn_what_one_does_and_one_of_them_recommends(tmp_path: Path, cache: Path, stoker: Any) -> None:
    """The same batches and masks, dealt out: only the order of sums differs."""
    short = (*QUICK, "--cache", str(cache), "--epochs", "2", "--ratings", "mine.csv")
    project = tmp_path / "project"
    shutil.copytree(FOLDER, project, ignore=shutil.ignore_patterns("__pycache__", "outputs", "checkpoints"))
    (project / "mine.csv").write_text("\n".join(f"{title}, {stars}" for title, stars in my_taste()), encoding="utf-8")
    program("train.py", *short, folder=project, OMP_NUM_THREADS="1")
    train, recommend = f"python train.py {' '.join(short)}", "python recommend.py outputs/model.pt"
    job = {
        "name": "both",
        "run": f"{train} && {recommend}",
        "source": str(project),
        "processes": 2,
        "env": {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    }
    (tmp_path / "stoker.yaml").write_text(json.dumps(job))
    said = stoker("run")
    assert re.findall(r"epoch +(\d+)  loss", said) == ["1", "2"], "told once"
    assert said.count("for you:") == 1
    landed = tmp_path / "outputs" / "both-1"
    assert {"model.pt", "predictions.csv", "recommendations.html"} <= {path.name for path in landed.iterdir()}
    one, two = (weights_of(folder / "model.pt") for folder in (project / "outputs", landed))
    assert all(torch.allclose(one[name], two[name], atol=2e-3) for name in one)
    apart = max((one[name] - two[name]).abs().mean().item() for name in one)
    assert apart < 1e-4


# Interruption


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, program("train.py", *LONGER, "--cache", cache, folder=folder, OMP_NUM_THREADS="1")


@pytest.mark.heavy
def test_killed_in_the_middle_it_ends_with_the_same_bits(
    tmp_path: Path, cache: Path, undisturbed: tuple[Path, str]
) -> None:
    command = [sys.executable, str(FOLDER / "train.py"), *LONGER, "--cache", str(cache)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(OMP_NUM_THREADS="1"), stdout=log, stderr=log)
    while process.poll() is None and not list((tmp_path / "checkpoints").glob("step-*")):
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()
    before = epochs((tmp_path / "log").read_text())
    said = program("train.py", *LONGER, "--cache", cache, folder=tmp_path, OMP_NUM_THREADS="1")
    assert "resumed from step-" in said
    assert before | epochs(said) == epochs(undisturbed[1])
    one, other = (max((folder / "checkpoints").glob("step-*")) for folder in (tmp_path, undisturbed[0]))
    assert one.name == other.name
    for part in ("model", "champion"):
        assert same(Checkpoint.load_weights(one, part), Checkpoint.load_weights(other, part)), part


@pytest.mark.heavy
def test_killed_behind_the_last_batch_of_an_epoch_it_still_knows_its_loss(tmp_path: Path, cache: Path) -> None:
    """With one batch in an epoch, a step is its last: a notice lets it be saved there, and not at the epoch's end."""
    one_batch = (*LONGER, "--batch_size", "1000000", "--cache", str(cache))
    command = [sys.executable, str(FOLDER / "train.py"), *one_batch]
    notice = tmp_path / "notice"
    notice.write_text(json.dumps({"at": time.time(), "deadline": time.time() + 300, "kind": "evict"}))
    warned = environment(OMP_NUM_THREADS="1", STOKER_NOTICE=str(notice))
    process = subprocess.Popen(command, cwd=tmp_path, env=warned)
    while process.poll() is None and not list((tmp_path / "checkpoints").glob("step-*")):
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    saved = int(max((tmp_path / "checkpoints").glob("step-*")).name[5:])
    losses = epochs(program("train.py", *one_batch, folder=tmp_path, OMP_NUM_THREADS="1"))
    assert min(losses) == saved  # an epoch whose only step is done, but not its end
    assert "loss 0.0000" not in losses[saved]


@pytest.mark.heavy
def test_evicted_run_of_stoker_ends_with_the_same_model(
    tmp_path: Path, cache: Path, stoker: Any, undisturbed: tuple[Path, str]
) -> None:
    job = {
        "name": "films",
        "run": f"python train.py {' '.join(LONGER)} --cache {cache} --output_dir ${{outputs}}",
        "source": str(FOLDER),
        "env": {"OMP_NUM_THREADS": "1"},
    }
    (tmp_path / "stoker.yaml").write_text(json.dumps(job))
    stoker("run", "-d")
    deadline = time.monotonic() + 200
    while "epoch   1" not in stoker("logs", "films-1"):
        assert time.monotonic() < deadline
    stoker("evict", "films-1", "--notice", "2s")
    stoker("logs", "films-1", "-f")
    facts = json.loads(stoker("show", "films-1", "--json"))["run"]
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 2)
    said = [stoker("logs", "films-1", "--attempt", attempt) for attempt in ("1", "2")]
    assert "resumed from step-" in said[1]
    assert epochs(said[0]) | epochs(said[1]) == epochs(undisturbed[1])
    one, other = tmp_path / "outputs" / "films-1" / "model.pt", undisturbed[0] / "outputs" / "model.pt"
    assert same(weights_of(one), weights_of(other))


def test_the_job_files_are_ones_that_stoker_can_run() -> None:
    small, full = (jobfile.read(FOLDER / name).job for name in ("stoker.yaml", "movielens.yaml"))
    assert (small.name, str(small.stop_when)) == ("films", "hr@10 >= 0.8")
    assert (full.name, str(full.stop_when)) == ("movielens", "hr@10 >= 0.979")
