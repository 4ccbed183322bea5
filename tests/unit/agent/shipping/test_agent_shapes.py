"""Metrics in lines as scripts print them: which lines give exactly which points, and which give none."""

# ruff: noqa: E501 - lines are as scripts print them

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.shipping.metrics.printed import PrintedPoints
from stoker.agent.shipping.metrics.shapes import Shapes, candidates

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
    ("INFO:ljs_base:loss_disc: 2.345, loss_gen: 0.521", (None, {"loss_disc": 2.345, "loss_gen": 0.521})),
    ("[2026-11-18 16:40:00 swin_tiny] (main.py 60): INFO Train: [3/60][2/4]\teta 0:00:12 lr 0.001000\ttime 0.0700 (0.0700)\tloss 1.0986 (1.0986)\tmem 0MB",
     (3.5, {"lr": 0.001, "loss": 1.0986})),
    ("[2026-11-18 16:40:00 swin_tiny] (main.py 66): INFO  * Acc@1 33.000 Acc@5 53.000", (None, {"test_acc@1": 33.0, "test_acc@5": 53.0})),
    ("I1118 16:40:41.123456 140012 train.py:99] {'step': 4, 'loss': 0.37}", (4, {"loss": 0.37})),
    ("Training loss after epoch 3: 0.345", (3, {"train_loss": 0.345})),
    ("Cost after iteration 100: 0.4321", (100, {"cost": 0.4321})),
    ("    val_loss       : 0.25", (None, {"val_loss": 0.25})),
    ("2026-05-01 12:00:01,123 - trainer - INFO -     loss           : 0.123", (None, {"loss": 0.123})),
    ("2024-05-01 12:00:01,123 - __main__ - INFO - Epoch 2 - loss: 0.5 - f1: 0.61", (2, {"loss": 0.5, "f1": 0.61})),
    ("I0501 12:00:01.123456 140012 train.py:150] train epoch: 1, loss: 0.2431, accuracy: 92.54", (1, {"loss": 0.2431, "accuracy": 92.54})),
    ("I0501 12:00:01.123456 140012 logging_writer.py:48] [100] accuracy=0.912, loss=0.3012", (100, {"accuracy": 0.912, "loss": 0.3012})),
    ("Epoch 10, Train MSE: 0.034, Test RMSE: 0.184", (10, {"train_mse": 0.034, "test_rmse": 0.184})),
    ("Epoch:  3, Loss: 1.7917, Train: 0.3571, Val: 0.2180, Test: 0.2340", (3, {"loss": 1.7917, "train": 0.3571, "val": 0.218, "test": 0.234})),
    ("INFO:Coach:pi_loss=0.5 v_loss=0.25", (None, {"pi_loss": 0.5, "v_loss": 0.25})),
    ("Round 5: accuracy = 0.8125", (5, {"accuracy": 0.8125})),
    ("epoch 2 error: 0.125", (2, {"error": 0.125})),
    ("Epoch 4/8  loss 0.6215  mask_ap 0.4949  in 17.0 s", (4, {"loss": 0.6215, "mask_ap": 0.4949})),
    ("loss 0.5 / acc 0.75", (None, {"loss": 0.5, "acc": 0.75})),
    ("{'loss': 0.25} epoch 3", (3, {"loss": 0.25})),
    ("Epoch 3: {'loss': 0.25, 'accuracy': 0.5}", (3, {"loss": 0.25, "accuracy": 0.5})),
    ("Validation: loss 0.512, accuracy 0.875", (None, {"val_loss": 0.512, "val_accuracy": 0.875})),
    (
        "Thu Nov 19 22:19:30 2026\tEpoch 1:\t[3/3]\tcontent: 145.318115\tstyle: 72.159058\ttotal: 217.477173",
        (2.0, {"content": 145.318115, "style": 72.159058}),
    ),
    ("(epoch: 1, iters: 5, time: 0.113, data: 0.010) G_GAN: 0.512 D_A: 0.301 ", (1, {"g_gan": 0.512, "d_a": 0.301})),
    ("2026-11-18 07:31:00,1 INFO: [SRRes..][epoch:  0, iter:     100, lr:(1.000e-04,)] [eta: 0:00:20, time (data): 0.150 (0.001)] l_pix: 1.25e-02 ", (100, {"epoch": 0.0, "l_pix": 0.0125})),
    ("Train loss 12 0.123456 Grad Norm 1.234567 0.15s/it", (12, {"train_loss": 0.123456})),
    ("Validation loss 500:  0.234567  ", (500, {"val_loss": 0.234567})),
    ("Epoch: 1 - Cosine-Similarity :\tPearson: 0.8123\tSpearman: 0.8201", (1, {"pearson": 0.8123, "spearman": 0.8201})),
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
    # what people write in other words
    ("Loss -> 0.12", (None, {"loss": 0.12})),
    ("Epoch 3 -> loss 0.12", (3, {"loss": 0.12})),
    ("Epoch 3 => loss: 0.12, acc: 0.9", (3, {"loss": 0.12, "acc": 0.9})),
    ("Validation accuracy is 0.93", (None, {"val_accuracy": 0.93})),
    ("The accuracy is 0.93", (None, {"accuracy": 0.93})),
    ("Epoch 1, training loss was 0.5", (1, {"train_loss": 0.5})),
    ("train_loss=1.2e-3, lr 1e-4", (None, {"train_loss": 0.0012, "lr": 0.0001})),
    ("[epoch 3] loss 0.5 acc 91.2%", (3, {"loss": 0.5, "acc": 91.2})),
    ("100: loss=0.5", (100, {"loss": 0.5})),
    ("100 loss: 0.5", (100, {"loss": 0.5})),
    ("it 100 loss 0.5", (100, {"loss": 0.5})),
    ("[100] loss: 0.5", (100, {"loss": 0.5})),
    ("loss: tensor(0.5123, grad_fn=<NllLossBackward0>)", (None, {"loss": 0.5123})),
    ("epoch 3 loss tensor(0.5123, device='cuda:0')", (3, {"loss": 0.5123})),
    ("Step 5 loss tf.Tensor(0.6931, shape=(), dtype=float32)", (5, {"loss": 0.6931})),
    ("epoch 1 Loss: [0.5123]", (1, {"loss": 0.5123})),
    ("Score: 0.953", (None, {"score": 0.953})),
    ("Best score: 0.9533", (None, {"best_score": 0.9533})),
    ("Test score: 0.95", (None, {"test_score": 0.95})),
    ("R^2: 0.91", (None, {"r2": 0.91})),
    ("R2 score: 0.91", (None, {"r2_score": 0.91})),
    ("F1 Score: 0.81", (None, {"f1_score": 0.81})),
    ("ROC AUC: 0.9123", (None, {"roc_auc": 0.9123})),
    ("mAP@0.5: 0.61", (None, {"map@0.5": 0.61})),
    ("Top-1 accuracy: 76.1", (None, {"top1_accuracy": 76.1})),
    ("top1: 76.1, top5: 93.0", (None, {"top1": 76.1, "top5": 93.0})),
    ("Discriminator loss: 0.5, generator loss: 1.2", (None, {"discriminator_loss": 0.5, "generator_loss": 1.2})),
    ("[Epoch 0/200] [Batch 10/938] [D loss: 0.693] [G loss: 0.712]", (0.010661, {"d_loss": 0.693, "g_loss": 0.712})),
    ("[0/25][40/1583]\tLoss_D: 1.6738\tLoss_G: 5.4311\tD(x): 0.5714", (0.025268, {"loss_d": 1.6738, "loss_g": 5.4311})),
    ("Max accuracy: 81.25%", (None, {"max_accuracy": 81.25})),
    ("global_step=100, episodic_return=[21.]", (100, {"episodic_return": 21})),
    ("Episode 100\tAverage Score: 1.02", (100, {"score": 1.02})),
    # tutorials
    ("Accuracy of the network on the 10000 test images: 54 %", (None, {"test_accuracy": 54})),
    ("Test Accuracy of the model on the 10000 test images: 97.53 %", (None, {"test_accuracy": 97.53})),
    ("Accuracy for class: plane is 65.1 %", (None, {"accuracy/plane": 65.1})),
    ("[2, 12000] loss: 1.284", (2, {"loss": 1.284})),
    ("LOSS train 0.47 valid 0.44", (None, {"train_loss": 0.47, "val_loss": 0.44})),
    # scikit-learn, COCO, TensorFlow's estimators
    ("[CV 1/5; 3/9] END C=1, kernel=rbf;, score=0.960 total time=   0.0s", (None, {"score": 0.96})),
    ("[CV 1/5] END C=1;, score=(train=0.99, test=0.953) total time=   0.0s", (None, {"train_score": 0.99, "score": 0.953})),
    ("[1/100] 1 tree, 31 leaves, max depth = 12, train loss: 0.52000, val loss: 0.60000, in 0.011s", (1, {"train_loss": 0.52, "val_loss": 0.6})),
    ("Iteration 0, inertia 123.456.", (0, {"inertia": 123.456})),
    ("Norm: 1.23, NNZs: 4, Bias: 0.100000, T: 120, Avg. loss: 0.512345", (None, {"norm": 1.23, "bias": 0.1, "loss": 0.512345})),
    (" Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.366", (None, {"AP": 0.366})),
    (" Average Precision  (AP) @[ IoU=0.50      | area=   all | maxDets=100 ] = 0.58", (None, {"AP@0.50/all/100": 0.58})),
    ("INFO:tensorflow:loss = 0.6931472, step = 100 (0.512 sec)", (100, {"loss": 0.6931472})),
    ("        test_acc            0.9229999780654907", (None, {"test_acc": 0.9229999780654907})),
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
    "The accuracy was 0.5 or so", "accepted: 0.5", "loss is a scalar",
    "Found 244 images belonging to 2 classes.", "[12:00:00] WARNING: src/learner.cc:1061: loss: 0.5", "[1] 12345", "[LightGBM] [Info] Total Bins 6132",
    "[LightGBM] [Info] Number of data points in the train set: 455, number of used features: 30", "DLL 2020-11-05 11:39:41.123456 - PARAMETER loss_scale : 128.0 ",
    "| Name | Type | Params |", "0 | loss_fn | CrossEntropyLoss | 0.5", "Trial 3 pruned.", "test: 0.5", "train 0.5", "val 0.5 0.6", "map 0.5",
    # what was loaded, wished for, or is better than before
    "resuming from epoch 3 (loss 0.5)", "Loading checkpoint 'ckpt.pt' (epoch 3, best_acc 0.9)", "restored epoch 3, loss: 0.5", "=> loaded checkpoint 'a.pth.tar' (epoch 3, acc 0.5)",
    "target accuracy: 0.95", "baseline accuracy: 0.5", "required accuracy = 0.9", "expected loss: 0.69", "accuracy threshold: 0.5", "previous best acc: 0.9",
    "Validation loss decreased (0.512 --> 0.410).  Saving model ...", "loss 0.512 -> 0.410", "def loss(x) -> 0.5", "accuracy is good", "loss is nan-safe", "The loss of 12 layers",
    "accuracy of model v1.2: see below", "Accuracy of the sensor: 5 mm", "the accuracy of this is 0.5 or 0.6", "loss of 0.5 GB of memory", "accuracy is 0.5x that of before",
    # ordinary lines of installers, servers, clouds, data loaders and shells
    "Collecting accelerate==0.25.0", "Successfully installed torch-2.1.0 accelerate-0.25.0", "Requirement already satisfied: scikit-learn in /usr/lib (1.3.0)",
    "Downloading data from https://x.org/mnist.npz", "11490434/11490434 [==============================] - 1s 0us/step", "Extracting ./data/train.gz to ./data",
    "Using device: cuda:0", "cuda:0 NVIDIA A100-SXM4-80GB 79.15 GB", "Number of parameters: 1.23M", "number of parameters: 10.65M", "tokens per iteration will be: 16,384",
    "| Layer | Output Shape | Param # |", "Total params: 421,642 (1.61 MB)", "Trainable params: 421,642", "Model size: 44.7 MB", "Train samples: 60000, test samples: 10000",
    "train: 48000 val: 12000", "Train size 48000, val size 12000", "split 0.8 0.1 0.1", "train/val split: 0.8/0.2", "class weights: [0.5, 1.5]", "pos_weight=3.5",
    "learning rate set to 0.001", "lr 0.1 -> 0.01", "Reducing lr to 1e-4", "warmup_steps 100", "dropout: 0.1", "weight_decay=0.01 betas=(0.9, 0.999)", "seed: 1.0", "temperature 0.7",
    "saved to out/model_0.93.pt", "Saving model checkpoint to out/checkpoint-500", "removed checkpoint with score 0.5 from disk because keep_last is 3", "took 3.5s", "Elapsed 12.3 s", "[Parallel(n_jobs=1)]: Done  10 out of  10 | elapsed:    0.1s finished",
    "Fitting 5 folds for each of 9 candidates, totalling 45 fits", "10.0.0.1 - - [01/Jan/2026] GET /loss HTTP/1.1 200 0.5", "GET /metrics 200 0.004s", "pid 123 cpu 0.5 mem 0.1", "load average: 0.52, 0.58, 0.59",
    "  1 1.0 2.0 3.0", "0.1 0.2 0.3", "1 2 3", "| 1 | 2 |", "| a | 0.5 |", "+---+---+", "----------", "==========", "name value", "x 1.5", "a: 1.0", "Time 12:00:05", "2 * 0.5 = 1.0",
    "worker 3: loss of connection, retry 2 in 1.5s", "connection lost 0.5 s ago", "reward hacking is bad", "epochs: 10", "max_epochs=10", "num_epochs 3.0", "Epoch time: 3.5", "eval_every 100", "top 5 predictions", "top -n 1",
    "map size 4.5", "mapped 0.5", "score 5 goals", "returned 0.5", "return code: 1", "exit status 0.0", "error rate limit: 0.5 requests/s", "r2 bucket: 0.5", "F1 race at 13.5", "test 3 passed in 0.53s", "==== 12 passed in 1.23s ====",
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
    assert len(POINTS) >= 100
    assert len(NOTHING) >= 200


@pytest.mark.parametrize("line", [line for line, _ in POINTS])
def test_a_usual_line_is_looked_at(line: str) -> None:
    printed = f"\nnothing to see\n{line}\nnor here\n".encode()
    assert line.encode() in list(candidates(printed))


# fmt: off
TABLES: dict[str, tuple[str, list[tuple[float | None, dict[str, float]]]]] = {
    "fastai": ("epoch     train_loss  valid_loss  accuracy  time    \n0         0.512       0.411       0.871     00:12     \nwarming up\n1         0.402       0.391       0.881     00:11     ",
               [(0, {"train_loss": 0.512, "valid_loss": 0.411, "accuracy": 0.871}), (1, {"train_loss": 0.402, "valid_loss": 0.391, "accuracy": 0.881})]),
    "skorch": ("  epoch    train_loss    valid_acc    valid_loss     dur\n-------  ------------  -----------  ------------  ------\n      1        \x1b[36m0.6868\x1b[0m       \x1b[32m0.6000\x1b[0m        \x1b[35m0.6740\x1b[0m  0.0261",
               [(1, {"train_loss": 0.6868, "valid_acc": 0.6, "valid_loss": 0.674, "dur": 0.0261})]),
    "gradient boosting": ("      Iter       Train Loss   Remaining Time \n         1           1.2647            0.05s\n         2           1.2012            0.04s",
                          [(1, {"train_loss": 1.2647}), (2, {"train_loss": 1.2012})]),
    "spaCy": ("E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  ENTS_P  ENTS_R  SCORE \n---  ------  ------------  --------  ------  ------  ------  ------\n  0     200          1.50     32.50    0.25    0.20    0.30    0.25",
              [(200, {"epoch": 0, "LOSS_TOK2VEC": 1.5, "LOSS_NER": 32.5, "ENTS_F": 0.25, "ENTS_P": 0.2, "ENTS_R": 0.3, "SCORE": 0.25})]),
    "YOLO": ("      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n        1/3         0G      1.174      2.781      1.224        215        640: 100%|██████████| 4/4 [00:05<00:00,  1.3s/it]\n"
             "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|██████████| 2/2 [00:01<00:00,  1.5it/s]\n                   all          4         17      0.642      0.537      0.614      0.454\n                person          4         10      0.5      0.5      0.5      0.5",
             [(1, {"box_loss": 1.174, "cls_loss": 2.781, "dfl_loss": 1.224, "Instances": 215}), (1, {"Box_P": 0.642, "R": 0.537, "mAP50": 0.614, "mAP50-95": 0.454})]),
    "Detectron2": ("|   AP   |  AP50  |  AP75  |  APs  |\n|:------:|:------:|:------:|:-----:|\n| 41.123 | 61.712 | 44.601 |  nan  |", [(None, {"AP": 41.123, "AP50": 61.712, "AP75": 44.601, "APs": float("nan")})]),
    "rich": ("┏━━━━━━━┳━━━━━━┓\n┃ Epoch ┃ Loss ┃\n┡━━━━━━━╇━━━━━━┩\n│ 1     │ 0.50 │\n│ 2     │ 0.25 │\n└───────┴──────┘", [(1, {"Loss": 0.5}), (2, {"Loss": 0.25})]),
    "rich, by split": ("  Epoch 3/60\n┏━━━━━━━┳━━━━━━━━┳━━━━━━━┓\n┃ split ┃ loss   ┃ acc   ┃\n┡━━━━━━━╇━━━━━━━━╇━━━━━━━┩\n│ train │ 0.6931 │ 0.531 │\n│ val   │ 0.7   │ 50% │\n└───────┴────────┴───────┘",
                       [(3, {"train_loss": 0.6931, "train_acc": 0.531}), (3, {"val_loss": 0.7, "val_acc": 50.0})]),
    "Stable-Baselines3": ("---------------------------------\n| rollout/           |          |\n|    ep_len_mean     | 21.4     |\n|    ep_rew_mean     | 22.5     |\n| time/              |          |\n|    fps             | 1234     |\n|    iterations      | 1        |\n"
                          "|    total_timesteps | 2048     |\n| train/             |          |\n|    loss            | 5.42     |\n|    learning_rate   | 0.0003   |\n---------------------------------",
                          [(2048, {"rollout/ep_len_mean": 21.4, "rollout/ep_rew_mean": 22.5, "train/loss": 5.42, "train/learning_rate": 0.0003})]),
    "Spinning Up": ("---------------------------------------\n|             Epoch |               3 |\n|      AverageEpRet |            -600 |\n|            LossPi |         0.00123 |\n---------------------------------------", [(3, {"AverageEpRet": -600, "LossPi": 0.00123})]),
    "Lightning's test": ("┏━━━━━━━━━━━━━┳━━━━━━━━━━━━━━┓\n┃ Test metric ┃ DataLoader 0 ┃\n┡━━━━━━━━━━━━━╇━━━━━━━━━━━━━━┩\n│  test_acc   │    0.923     │\n│  test_loss  │    0.2575    │\n└─────────────┴──────────────┘", [(None, {"test_acc": 0.923, "test_loss": 0.2575})]),
    "classification_report": ("              precision    recall  f1-score   support\n\n           0       0.98      0.99      0.98       100\n\n    accuracy                           0.97       360\n   macro avg       0.97      0.96      0.95       360\n",
                              [(None, {"accuracy": 0.97}), (None, {"macro_avg/precision": 0.97, "macro_avg/recall": 0.96, "macro_avg/f1-score": 0.95})]),
    "PyTorch's quickstart": ("Epoch 1\n-------------------------------\nloss: 2.303494  [   64/60000]\nTest Error: \n Accuracy: 39.1%, Avg loss: 2.150106 \n", [(1.001067, {"loss": 2.303494}), (1, {"test_accuracy": 39.1, "test_loss": 2.150106})]),
}
NO_TABLES = {
    "a listing": "name    loss    size\nmodel.pt    none    12\nother.pt    none    13",
    "a model": "| Name  | Type   | Params |\n|-------|--------|--------|\n| 0     | Linear | 12     |",
    "processes": "  PID  %CPU  %MEM\n    1   0.5   0.1",
    "settings": "-----------------\n| lr | 0.001 |\n| batch_size | 32 |\n-----------------",
    "GPUs": "| GPU  Name  | Memory |\n|====|====|\n|   0  A100  | 10 |\n| 35 | 0.5 |\n+-----+-----+",
    "rows after another thing": "epoch     train_loss  accuracy\n0 0.5\n1 2 three",
    "prose": "Loss  and accuracy\n1 2\n3 4",
}
# fmt: on


@pytest.mark.parametrize("name", TABLES)
def test_a_table_gives_exactly_its_points(name: str, tmp_path: Path) -> None:
    text, wanted = TABLES[name]
    (tmp_path / "log").write_text(f"starting\n{text}\ndone\n", encoding="utf-8")
    source = PrintedPoints(tmp_path / "log", 0, {}, set(), lambda _kind, _text: None)
    found = [(one.step, dict(one.values)) for one in source.fresh(final=True)]
    floats = [
        (step, {key: None if math.isnan(one) else float(one) for key, one in values.items()}) for step, values in wanted
    ]
    assert found == floats


@pytest.mark.parametrize("name", NO_TABLES)
def test_a_table_of_other_things_gives_no_point(name: str) -> None:
    shapes = Shapes()
    assert [shapes.read(line) for line in NO_TABLES[name].split("\n")] == [None] * (NO_TABLES[name].count("\n") + 1)


def test_ordinary_lines_give_nothing_below_the_head_of_a_table_either() -> None:
    shapes = Shapes()
    assert shapes.read("epoch     train_loss  valid_loss  accuracy  time") is None
    assert [line for line in NOTHING if shapes.read(line)] == []


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
        if found and found.shape.startswith("tables"):  # whose head stood above
            continue
        assert (found is None) == (alone is None)
        if found and alone:
            assert {_own(name) for name in found.values} == {_own(name) for name in alone.values}
            assert all(isinstance(value, float) for value in found.values.values())


def _own(name: str) -> str:
    """Without what the line before said it is of."""
    return (
        name.removeprefix("evaluate/")
        .removeprefix("val_")
        .removeprefix("test_")
        .removeprefix("dev_")
        .removeprefix("eval_")
    )
