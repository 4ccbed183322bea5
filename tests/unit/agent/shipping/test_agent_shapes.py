"""Metrics in lines as scripts print them: which lines give exactly which points, and which give none."""

# ruff: noqa: E501 - lines are as scripts print them

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.shipping.shapes import Shapes, candidates

BAR = "━" * 20
Wanted = tuple[float | None, Mapping[str, float]]

# fmt: off
POINTS: list[tuple[str, Wanted]] = [
    # plain lines, as people write them
    ("Epoch 3/8 loss: 0.03 val_acc: 0.75", (3, {"loss": 0.03, "val_acc": 0.75})),
    ("loss=0.5 acc=0.9", (None, {"loss": 0.5, "acc": 0.9})),
    ("Epoch: 12 | Train Loss: 0.4312 | Val Loss: 0.5121", (12, {"train_loss": 0.4312, "val_loss": 0.5121})),
    ("Epoch [3/8], Loss: 0.2513", (3, {"loss": 0.2513})),
    ("Epoch [3/5], Step [100/600], Loss: 0.1855", (3.166667, {"loss": 0.1855})),
    ("epoch 7 train_loss 0.1234 val_loss 0.2345 val_acc 0.9123", (7, {"train_loss": 0.1234, "val_loss": 0.2345, "val_acc": 0.9123})),
    ("epoch=4, loss=1.25e-03, lr=1.0e-04", (4, {"loss": 0.00125, "lr": 0.0001})),
    ("[Epoch 5] training loss: 0.31, validation accuracy: 91.20%", (5, {"train_loss": 0.31, "val_accuracy": 91.2})),
    ("Step 1200 - loss: 2.3456 - lr: 0.0003", (1200, {"loss": 2.3456, "lr": 0.0003})),
    ("step: 40, loss: nan", (40, {"loss": float("nan")})),
    ("Iteration 500: loss = 0.6931", (500, {"loss": 0.6931})),
    ("train Loss: 0.5310 Acc: 0.7254", (None, {"train_loss": 0.531, "train_acc": 0.7254})),
    ("val Loss: 0.2170 Acc: 0.9216", (None, {"val_loss": 0.217, "val_acc": 0.9216})),
    ("Best val Acc: 0.941176", (None, {"best_val_acc": 0.941176})),
    ("Test accuracy: 0.9831", (None, {"test_accuracy": 0.9831})),
    ("Final test loss: 0.0512", (None, {"final_test_loss": 0.0512})),
    ("Episode 120, reward: 195.5, epsilon: 0.01", (120, {"reward": 195.5})),
    ("INFO:root:epoch 3 loss 0.21", (3, {"loss": 0.21})),
    ("    val_loss       : 0.25", (None, {"val_loss": 0.25})),
    ("2026-05-01 12:00:01,123 - trainer - INFO -     loss           : 0.123", (None, {"loss": 0.123})),
    ("2024-05-01 12:00:01,123 - __main__ - INFO - Epoch 2 - loss: 0.5 - f1: 0.61", (2, {"loss": 0.5, "f1": 0.61})),
    ("I0501 12:00:01.123456 140012 train.py:150] train epoch: 1, loss: 0.2431, accuracy: 92.54", (1, {"loss": 0.2431, "accuracy": 92.54})),
    ("I0501 12:00:01.123456 140012 logging_writer.py:48] [100] accuracy=0.912, loss=0.3012", (100, {"accuracy": 0.912, "loss": 0.3012})),
    ("Epoch 10, Train MSE: 0.034, Test RMSE: 0.184", (10, {"train_mse": 0.034, "test_rmse": 0.184})),
    ("Epoch:  3, Loss: 1.7917, Train: 0.3571, Val: 0.2180, Test: 0.2340", (3, {"loss": 1.7917, "train": 0.3571, "val": 0.218, "test": 0.234})),
    ("Round 5: accuracy = 0.8125", (5, {"accuracy": 0.8125})),
    ("epoch 2 error: 0.125", (2, {"error": 0.125})),
    ("loss 0.5 / acc 0.75", (None, {"loss": 0.5, "acc": 0.75})),
    ("{'loss': 0.25} epoch 3", (3, {"loss": 0.25})),
    ("Epoch 3: {'loss': 0.25, 'accuracy': 0.5}", (3, {"loss": 0.25, "accuracy": 0.5})),
    ("Validation: loss 0.512, accuracy 0.875", (None, {"val_loss": 0.512, "val_accuracy": 0.875})),
    # PyTorch's examples
    ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 0.318465", (1.010667, {"loss": 0.318465})),
    ("Test set: Average loss: 0.0521, Accuracy: 9850/10000 (98%)", (None, {"test_loss": 0.0521, "test_accuracy": 0.985})),
    ("Epoch: [0][ 10/100]\tTime  0.152 ( 0.301)\tData  0.000 ( 0.112)\tLoss 6.9e+00 (6.95e+00)\tAcc@1   0.39 (  0.21)\tAcc@5   1.56 (  0.92)", (0.1, {"loss": 6.9, "acc@1": 0.39, "acc@5": 1.56})),
    ("Test: [ 10/196]\tTime  0.152 ( 0.301)\tLoss 1.0321e+00 (9.95e-01)\tAcc@1  71.09 ( 73.12)", (None, {"test_loss": 1.0321, "test_acc@1": 71.09})),
    (" *   Acc@1 71.234 Acc@5 90.112", (None, {"test_acc@1": 71.234, "test_acc@5": 90.112})),
    ("| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch  8.26 | loss  7.63 | ppl  2061.36", (1, {"lr": 20.0, "loss": 7.63, "ppl": 2061.36})),
    ("| end of epoch   1 | time: 35.21s | valid loss  5.91 | valid ppl   369.12", (1, {"val_loss": 5.91, "val_ppl": 369.12})),
    ("====> Epoch: 3 Average loss: 113.1032", (3, {"loss": 113.1032})),
    ("====> Test set loss: 110.2133", (None, {"test_loss": 110.2133})),
    ("Epoch: [0]  [ 10/100]  eta: 0:01:00  lr: 0.1  img/s: 100.05  loss: 6.9312 (6.9401)  acc1: 0.5000 (0.4312)  acc5: 2.0000 (1.9811)  time: 0.3120  data: 0.1101  max mem: 5021", (0.1, {"lr": 0.1, "loss": 6.9312, "acc1": 0.5, "acc5": 2.0})),
    # nanoGPT
    ("iter 10: loss 2.1034, time 12.33ms, mfu 3.12%", (10, {"loss": 2.1034})),
    ("step 250: train loss 1.9512, val loss 2.0121", (250, {"train_loss": 1.9512, "val_loss": 2.0121})),
    # Hugging Face
    ("{'loss': '0.6965', 'grad_norm': '5.12', 'learning_rate': '4.9e-05', 'epoch': '0.5'}", (0.5, {"loss": 0.6965, "grad_norm": 5.12, "learning_rate": 4.9e-05})),
    ("{'loss': 0.6965, 'learning_rate': 5e-05, 'epoch': 0.5}", (0.5, {"loss": 0.6965, "learning_rate": 5e-05})),
    ("{'eval_loss': 0.41, 'eval_accuracy': 0.8137, 'eval_runtime': 1.2, 'epoch': 1.0}", (1, {"eval_loss": 0.41, "eval_accuracy": 0.8137, "eval_runtime": 1.2})),
    ("{'train_runtime': 12.5, 'train_samples_per_second': 80.1, 'train_loss': 0.5121, 'epoch': 3.0}", (3, {"train_runtime": 12.5, "train_samples_per_second": 80.1, "train_loss": 0.5121})),
    ("{'loss': np.float64(0.25), 'acc': tensor(0.5, device='cuda:0')}", (None, {"loss": 0.25, "acc": 0.5})),
    ("{'epoch': 3, 'kappa': 0.4}", (3, {"kappa": 0.4})),
    # DLLogger
    ("DLL 2020-11-05 11:39:41.123456 - Training Epoch: 0 Training Iteration: 5  loss : 0.5312 ", (5, {"epoch": 0, "loss": 0.5312})),
    ("DLL 2020-11-05 11:39:41.123456 - (0, 20) train.loss : 0.6912 train.total_ips : 2512.31 img/s", (20, {"epoch": 0, "train.loss": 0.6912})),
    ("DLL 2020-11-05 11:39:41.123456 - () best_accuracy : 0.959 ", (None, {"best_accuracy": 0.959})),
    ('DLLL {"timestamp": "1592", "datetime": "x", "elapsedtime": "1.5", "type": "LOG", "step": [0, 5], "data": {"loss": 0.5}}', (5, {"epoch": 0, "loss": 0.5})),
    # boosted trees
    ("[10]\ttrain-rmse:0.51230\teval-rmse:0.61234", (10, {"train-rmse": 0.5123, "eval-rmse": 0.61234})),
    ("[3]\tvalidation_0-logloss:0.60312", (3, {"validation_0-logloss": 0.60312})),
    ("[0]\ttrain-auc:0.9+0.01\ttest-auc:0.8+0.02", (0, {"train-auc": 0.9, "test-auc": 0.8})),
    ("[10]\tvalid_0's auc: 0.912\tvalid_0's binary_logloss: 0.31", (10, {"valid_0/auc": 0.912, "valid_0/binary_logloss": 0.31})),
    ("[5]\ttraining's l2: 0.24\tvalid_1's l2: 0.25", (5, {"training/l2": 0.24, "valid_1/l2": 0.25})),
    ("100:\tlearn: 0.3112\ttest: 0.3512\tbest: 0.3510 (98)\ttotal: 1.2s\tremaining: 3.4s", (100, {"learn": 0.3112, "test": 0.3512, "best": 0.351})),
    # Optuna
    ("[I 2024-05-01 12:00:00,123] Trial 3 finished with value: 0.1235 and parameters: {'x': 1.5}. Best is trial 0 with value: 0.5.", (3, {"value": 0.1235})),
    # tqdm
    ("Epoch 3: 100%|██████████| 50/50 [00:01<00:00, 40.10it/s, loss=0.512, acc=0.81]", (3, {"loss": 0.512, "acc": 0.81})),
    ("100%|██████████| 50/50 [00:01<00:00, 40.10it/s, loss=0.512]", (None, {"loss": 0.512})),
    ("Epoch 0: 100%|██████████| 10/10 [00:00<00:00, 50.00it/s, v_num=3, train_loss=0.51, val_acc=0.902]", (0, {"train_loss": 0.51, "val_acc": 0.902})),
    # fairseq, mmdet, detectron
    ("2021-01-01 12:00:00 | INFO | train_inner | epoch 001:    100 / 1000 loss=8.512, nll_loss=7.911, ppl=240.1, wps=20012.1, ups=2.01, wpb=9956, bsz=320, num_updates=100, lr=1.25e-05, gnorm=1.231, train_wall=50, wall=61.2", (1.1, {"loss": 8.512, "nll_loss": 7.911, "ppl": 240.1, "lr": 1.25e-05, "gnorm": 1.231})),
    ("2021-01-01 12:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 5.012 | nll_loss 4.101 | ppl 17.12 | wps 0.1 | wpb 100 | bsz 8 | num_updates 1000", (1000, {"epoch": 1, "val_loss": 5.012, "val_nll_loss": 4.101, "val_ppl": 17.12})),
    ("Epoch [1][50/1000]\tlr: 2.000e-02, eta: 1:23:45, time: 0.512, data_time: 0.010, memory: 3800, loss_rpn_cls: 0.512, acc: 92.10, loss: 1.201", (1.05, {"lr": 0.02, "loss_rpn_cls": 0.512, "acc": 92.1, "loss": 1.201})),
    ("07/01 12:00:00 - mmengine - INFO - Epoch(train)  [1][ 50/1000]  lr: 2.0000e-02  eta: 1:23:45  time: 0.5120  data_time: 0.0100  memory: 3800  loss: 1.2010  loss_cls: 0.7", (1.05, {"lr": 0.02, "loss": 1.201, "loss_cls": 0.7})),
    ("[01/01 12:00:00 d2.utils.events]:  eta: 0:10:00  iter: 19  total_loss: 1.512  loss_cls: 0.512  time: 0.4012  data_time: 0.0212  lr: 0.00125  max_mem: 3012M", (19, {"total_loss": 1.512, "loss_cls": 0.512, "lr": 0.00125})),
]

NOTHING = [
    "", "hello", "loss", "loss:", "Training...", "Epoch 3/8", "Epoch 3", "starting epoch 3", "step 250",
    # paths, versions, hosts, dates
    "saving checkpoint to checkpoints/epoch=3-val_loss=0.25.ckpt",
    "Epoch 3, global step 100: 'val_loss' reached 0.25000 (best 0.25000), saving model to '/x/epoch=3-val_loss=0.25.ckpt' as top 1",
    "wrote model_loss=0.5.pt", "loaded weights from /data/acc_0.91/model.h5", "open runs/loss/0.5/events.out",
    "torch version: 2.1.0", "Using accelerate 0.25.0", "accelerate: 0.25.0", "acc==0.9.1", "CUDA 12.1, cuDNN 8.9",
    "listening on 127.0.0.1:8080", "master at 10.0.0.1:29500", "tcp://10.0.0.1:1234 accepted",
    "2024-05-01 12:00:00 starting", "date: 2024-05-01", "elapsed: 0:01:23", "accessed: 2024-05-01 12:00:00",
    # timings, sizes, shapes, progress
    "time: 0.512", "epoch 3 took 12.5 s", "Epoch 3 time: 12.5s", "loss computed in 0.51 s", "loss_time: 0.12", "step 10 time 0.5",
    "eta: 1:23:45", "speed: 12.5 it/s", "throughput: 1250.5 samples/s", "memory: 3800 MB", "batch_size: 64", "accumulate_steps: 4.0",
    "torch.Size([64, 3, 224, 224])", "input shape: (64, 10)", "loss shape: 64 x 10", "45%|████      | 45/100 [00:10<00:12,  4.31it/s]",
    "progress: 45.0%", "Downloading: 45%", "train: 100%|██████████| 60000/60000", "accuracy 3", "loss 12 layers",
    "10/10 [==============================] - 1s 5ms/step", f"10/10 {BAR} 1s 5ms/step",
    " 5/10 [=======>......................] - ETA: 1s - loss: 0.5",
    # settings
    "Namespace(lr=0.1, loss_weight=0.5, epochs=10)", "loss: mse", "loss: 'cross_entropy'", "loss_scale: 65536.0", "label_smoothing: 0.1",
    "CrossEntropyLoss(weight=None, label_smoothing=0.1)", "{'lr': 0.001, 'batch_size': 64, 'seed': 42}", "{'loss': 'mse', 'lr': 0.1}",
    "{'a': 'text'}", "{'epochs': 10, 'lr': 0.1}", "lr: 0.001", "lr=0.001 momentum=0.9", "early stopping with min_delta_loss=0.01",
    "stop when loss <= 0.5", "target accuracy >= 0.95", "loss_weight = 0.5", "kl_coef: 0.1", "precision: 16", "num_params: 1.5",
    # warnings, tracebacks, code
    "UserWarning: loss: 0.5 is not finite", "WARNING: loss: 0.5 exceeds 0.4", "RuntimeError: loss: 0.5", "ERROR loss: 0.5",
    '  File "train.py", line 12, in <module>', "    loss = 0.5 * criterion(out, y)", "    return loss: 0.5", "ValueError: accuracy: 1.5 is out of range",
    "if loss > 0.5:", "self.loss = 0.0", "loss = 0.5 if x else 1.0", "assert acc: 0.5", "raise loss=0.5",
    # prose
    "Epoch 3: val_loss improved from 0.50000 to 0.40000, saving model to best.h5", "Epoch 00003: ReduceLROnPlateau reducing learning rate to 0.0001.",
    "the loss should go below 0.5 after a few hundred steps of training on this data", "error: 404", "score: 3", "Error: 2 files not found",
    "Accuracy of the network on the 10000 test images: 54 %", "The accuracy was 0.5 or so", "accepted: 0.5", "loss is a scalar",
    "Found 244 images belonging to 2 classes.", "[12:00:00] WARNING: src/learner.cc:1061: loss: 0.5", "[1] 12345", "[LightGBM] [Info] Total Bins 6132",
    "[LightGBM] [Info] Number of data points in the train set: 455, number of used features: 30", "DLL 2020-11-05 11:39:41.123456 - PARAMETER loss_scale : 128.0 ",
    "| Name | Type | Params |", "0 | loss_fn | CrossEntropyLoss | 0.5", "Trial 3 pruned.", "test: 0.5", "train 0.5", "val 0.5 0.6", "map 0.5",
    "loss      0.0307  0.0307  0.166     7       7", "accuracy    0.98    0.93      1", "iou_0 = 1 / (2+2-1) = 1/3", "loss: 0.5 / 3",
]
# fmt: on


def point(line: str) -> Wanted | None:
    found = Shapes().read(line)
    return (found.step, found.values) if found else None


@pytest.mark.parametrize(("line", "wanted"), POINTS, ids=[line[:50] for line, _ in POINTS])
def test_a_usual_line_gives_exactly_its_point(line: str, wanted: Wanted) -> None:
    assert str(point(line)) == str((float(wanted[0]) if wanted[0] is not None else None, _floats(wanted[1])))


@pytest.mark.parametrize("line", NOTHING)
def test_a_line_that_holds_no_metric_gives_no_point(line: str) -> None:
    assert point(line) is None


def test_the_corpus_is_large_enough_to_mean_something() -> None:
    assert len(POINTS) >= 60
    assert len(NOTHING) >= 60


@pytest.mark.parametrize("line", [line for line, _ in POINTS])
def test_a_usual_line_is_looked_at(line: str) -> None:
    printed = f"\nnothing to see\n{line}\nnor here\n".encode()
    assert line.encode() in list(candidates(printed))


def _floats(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


@pytest.mark.parametrize("piece", ["loss", "loss: ", "loss 1", "epoch ", "Epoch [", "1%|", "[1]\t", "{'loss': ", "a: 1.0 ", "train val test ",
                                   "loss=", "1.", "0.5/", "- loss: ", "=", " ", "\t", "[1/2", "'s ", "DLL ", "e-", "a/b."])  # fmt: skip
@pytest.mark.parametrize("length", [1990, 60_000])
def test_no_line_takes_long_whatever_it_is_made_of(piece: str, length: int) -> None:
    shapes = Shapes()
    for head in ("", "Epoch 3 ", "[1]\t", "DLL 2020-11-05 11:39:41.123456 - ", "{'", "10/10 - "):
        for tail in ("", "}", "loss: 0.5x"):
            line = head + (piece * (length // len(piece)))[: length - len(head) - len(tail)] + tail
            begun = time.process_time()
            shapes.read(line)
            assert time.process_time() - begun < 0.1


def test_an_epoch_on_a_line_of_its_own_is_that_of_the_lines_behind_it() -> None:
    shapes, head = Shapes(), "2026-05-01 12:00:01,123 - trainer - INFO -     "
    assert shapes.read(f"{head}epoch          : 3") is None
    found = shapes.read(f"{head}loss           : 0.123")
    assert found is not None and (found.step, found.values) == (3, {"loss": 0.123})


def test_lines_of_one_form_keep_their_own_names_and_numbers() -> None:
    shapes = Shapes()
    lines = (
        "epoch 1 acc1: 0.50 f1: 0.25",
        "epoch 2 acc5: 0.75 f2: 0.50",
        "epoch 3 acc1: 1.00 f1: 0.75",
        "epoch 4 acc1:-1.00 f1: 0.75",
    )
    assert [(one.step, one.values) for one in map(shapes.read, lines) if one] == [
        (1, {"acc1": 0.5, "f1": 0.25}),
        (2, {"acc5": 0.75, "f2": 0.5}),
        (3, {"acc1": 1.0, "f1": 0.75}),
        (4, {"acc1": -1.0, "f1": 0.75}),
    ]


FRAGMENTS = [
    "loss", "acc@1", "epoch", "Epoch", "step", "train", "val", ":", "=", " ", "  ", "\t", ",", "|", "[", "]", "(", ")", "/", "%",
    "0", "1", "12", "0.5", "1e-3", "-2.5", "nan", "inf", "1e999", "٣", "²", "'", '"', "{", "}", "DLL ", "DLLL {", "Trial 3", "- ", "%|",
    "'s ", "10/10 - ", "[10]\t", "train-rmse:", "learn: ", "total", "\x00", "é", "━", "tensor(", "np.float64(", "max", "lr",
]  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join) | st.text(max_size=80), max_size=6))
def test_no_text_makes_it_fail_and_none_depends_on_the_lines_before(lines: list[str]) -> None:
    shapes = Shapes()
    for line in lines:
        found, alone = shapes.read(line), Shapes().read(line)
        assert (found is None) == (alone is None)
        if found and alone:
            assert {name.removeprefix("evaluate/") for name in found.values} == {
                name.removeprefix("evaluate/") for name in alone.values
            }
            assert all(isinstance(value, float) for value in found.values.values())
