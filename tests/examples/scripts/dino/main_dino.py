import argparse, datetime, json, math, os, sys, time
from pathlib import Path
import torch
import utils


def get_args_parser():
    parser = argparse.ArgumentParser('DINO', add_help=False)
    parser.add_argument('--arch', default='vit_small', type=str)
    parser.add_argument('--epochs', default=40, type=int)
    parser.add_argument('--saveckp_freq', default=20, type=int, help='Save checkpoint every x epochs.')
    parser.add_argument('--data_path', default='/path/to/imagenet/train/', type=str)
    parser.add_argument('--output_dir', default=".", type=str, help='Path to save logs and checkpoints.')
    parser.add_argument("--dist_url", default="env://", type=str)
    parser.add_argument("--local_rank", default=0, type=int, help="Please ignore and do not set this argument.")
    return parser


def train_dino(args):
    utils.init_distributed_mode(args)
    print("\n".join("%s: %s" % (k, str(v)) for k, v in sorted(dict(vars(args)).items())))
    torch.manual_seed(0)
    student = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.01)
    to_restore = {"epoch": 0}
    utils.restart_from_checkpoint(os.path.join(args.output_dir, "checkpoint.pth"), run_variables=to_restore, student=student, optimizer=optimizer)
    start_epoch = to_restore["epoch"]
    print("Starting DINO training !")
    for epoch in range(start_epoch, args.epochs):
        metric_logger = utils.MetricLogger(delimiter="  ")
        header = 'Epoch: [{}/{}]'.format(epoch, args.epochs)
        for it in metric_logger.log_every(range(2), 1, header):
            x = torch.randn(16, 8)
            loss = (student(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            time.sleep(0.15)
            metric_logger.update(loss=loss.item(), lr=0.01, wd=0.04)
        print("Averaged stats:", metric_logger)
        save_dict = {'student': student.state_dict(), 'optimizer': optimizer.state_dict(), 'epoch': epoch + 1, 'args': args}
        utils.save_on_master(save_dict, os.path.join(args.output_dir, 'checkpoint.pth'))
        if args.saveckp_freq and epoch % args.saveckp_freq == 0:
            utils.save_on_master(save_dict, os.path.join(args.output_dir, f'checkpoint{epoch:04}.pth'))
        log_stats = {**{f'train_{k}': v for k, v in metric_logger.values.items()}, 'epoch': epoch}
        if utils.is_main_process():
            with (Path(args.output_dir) / "log.txt").open("a") as f:
                f.write(json.dumps(log_stats) + "\n")


if __name__ == '__main__':
    parser = argparse.ArgumentParser('DINO', parents=[get_args_parser()])
    args = parser.parse_args()
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    train_dino(args)
