"""After the shape of pytorch-CycleGAN-and-pix2pix: options in classes, and the number of an epoch to begin with."""

import time
from options.train_options import TrainOptions
import os

import numpy as np
import torch
from models import create_model

if __name__ == '__main__':
    opt = TrainOptions().parse()
    rows = np.loadtxt(os.path.join(opt.dataroot, 'maps', opt.phase + '.txt'), dtype=np.float32)
    dataset = list(torch.from_numpy(rows))
    print('The number of training images = %d' % len(dataset))
    model = create_model(opt)
    model.setup(opt)
    total_iters = 0
    for epoch in range(opt.epoch_count, opt.n_epochs + opt.n_epochs_decay + 1):
        epoch_start_time = time.time()
        epoch_iter = 0
        for i, data in enumerate(dataset):
            total_iters += opt.batch_size
            epoch_iter += opt.batch_size
            model.set_input(data)
            model.optimize_parameters()
            time.sleep(0.15)
            if total_iters % opt.print_freq == 0:
                losses = model.get_current_losses()
                message = '(epoch: %d, iters: %d, time: %.3f, data: %.3f) ' % (epoch, epoch_iter, 0.1, 0.0)
                for k, v in losses.items():
                    message += '%s: %.3f ' % (k, v)
                print(message)
        if epoch % opt.save_epoch_freq == 0:
            print('saving the model at the end of epoch %d, iters %d' % (epoch, total_iters))
            model.save_networks('latest')
            model.save_networks(epoch)
        print('End of epoch %d / %d \t Time Taken: %d sec' % (epoch, opt.n_epochs + opt.n_epochs_decay, time.time() - epoch_start_time))
