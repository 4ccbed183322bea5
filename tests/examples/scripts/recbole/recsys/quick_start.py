import logging
from .config import Config
from .trainer import Trainer


def run(model, dataset, saved=None):
    config = Config(model, dataset)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s  %(message)s", datefmt="%a %d %b %Y %H:%M:%S")
    logger = logging.getLogger()
    trainer = Trainer(config)
    if saved:
        trainer.resume_checkpoint(saved)
    result = trainer.fit()
    logger.info(f"best valid : {result}")
