import argparse, collections, json, time, logging
from datetime import datetime
from pathlib import Path
import torch


class ConfigParser:
    def __init__(self, config, resume=None, run_id=None):
        self._config, self.resume = config, resume
        save_dir = Path(self.config['trainer']['save_dir'])
        exper_name = self.config['name']
        if run_id is None:
            run_id = datetime.now().strftime(r'%m%d_%H%M%S')
        self._save_dir = save_dir / 'models' / exper_name / run_id
        self._log_dir = save_dir / 'log' / exper_name / run_id
        exist_ok = run_id == ''
        self.save_dir.mkdir(parents=True, exist_ok=exist_ok)
        self.log_dir.mkdir(parents=True, exist_ok=exist_ok)
        with (self.save_dir / 'config.json').open('wt') as handle:
            json.dump(config, handle, indent=4)
        logging.basicConfig(level=logging.INFO, format='%(asctime)s - %(name)s - %(levelname)s - %(message)s')

    @classmethod
    def from_args(cls, args):
        args = args.parse_args()
        if args.resume is not None:
            resume = Path(args.resume)
            cfg_fname = resume.parent / 'config.json'
        else:
            assert args.config is not None, "Configuration file need to be specified. Add '-c config.json', for example."
            resume, cfg_fname = None, Path(args.config)
        return cls(json.load(open(cfg_fname)), resume)

    @property
    def config(self): return self._config
    @property
    def save_dir(self): return self._save_dir
    @property
    def log_dir(self): return self._log_dir


def main(config):
    logger = logging.getLogger('trainer')
    torch.manual_seed(123)
    model = torch.nn.Linear(8, 1)
    opt = torch.optim.Adam(model.parameters(), lr=config.config['lr'])
    start_epoch = 1
    if config.resume is not None:
        resume_path = str(config.resume)
        logger.info("Loading checkpoint: {} ...".format(resume_path))
        checkpoint = torch.load(resume_path)
        start_epoch = checkpoint['epoch'] + 1
        model.load_state_dict(checkpoint['state_dict'])
    for epoch in range(start_epoch, config.config['trainer']['epochs'] + 1):
        x = torch.randn(16, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        time.sleep(0.3)
        log = {'epoch': epoch, 'loss': loss.item(), 'val_loss': loss.item() * 1.1}
        for key, value in log.items():
            logger.info('    {:15s}: {}'.format(str(key), value))
        state = {'epoch': epoch, 'state_dict': model.state_dict()}
        filename = str(config.save_dir / 'checkpoint-epoch{}.pth'.format(epoch))
        torch.save(state, filename)
        logger.info("Saving checkpoint: {} ...".format(filename))


if __name__ == '__main__':
    args = argparse.ArgumentParser(description='PyTorch Template')
    args.add_argument('-c', '--config', default=None, type=str, help='config file path (default: None)')
    args.add_argument('-r', '--resume', default=None, type=str, help='path to latest checkpoint (default: None)')
    args.add_argument('-d', '--device', default=None, type=str, help='indices of GPUs to enable (default: all)')
    config = ConfigParser.from_args(args)
    main(config)
