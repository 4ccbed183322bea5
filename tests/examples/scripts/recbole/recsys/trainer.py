import os
import time
from logging import getLogger
import torch


class Trainer:
    def __init__(self, config):
        self.config = config
        self.logger = getLogger()
        self.checkpoint_dir = config["checkpoint_dir"]
        os.makedirs(self.checkpoint_dir, exist_ok=True)
        saved_model_file = "{}-{}.pth".format(self.config["model"], "latest")
        self.saved_model_file = os.path.join(self.checkpoint_dir, saved_model_file)
        self.model = torch.nn.Embedding(20, 4)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config["learning_rate"])
        self.start_epoch = 0
        self.best_valid_score = -1

    def _save_checkpoint(self, epoch, verbose=True, **kwargs):
        state = {"epoch": epoch, "best_valid_score": self.best_valid_score, "state_dict": self.model.state_dict(),
                 "optimizer": self.optimizer.state_dict()}
        saved_model_file = kwargs.pop("saved_model_file", self.saved_model_file)
        torch.save(state, saved_model_file, pickle_protocol=4)
        if verbose:
            self.logger.info("Saving current: " + saved_model_file)

    def resume_checkpoint(self, resume_file):
        resume_file = str(resume_file)
        self.saved_model_file = resume_file
        checkpoint = torch.load(resume_file, map_location="cpu", weights_only=False)
        self.start_epoch = checkpoint["epoch"] + 1
        self.model.load_state_dict(checkpoint["state_dict"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.logger.info("Checkpoint loaded. Resume training from epoch {}".format(self.start_epoch))

    def fit(self):
        for epoch_idx in range(self.start_epoch, self.config["epochs"]):
            t = time.time()
            time.sleep(0.25)
            loss = self.model(torch.arange(20)).pow(2).mean()
            self.optimizer.zero_grad(); loss.backward(); self.optimizer.step()
            self.logger.info("epoch %d training [time: %.2fs, train loss: %.4f]" % (epoch_idx, time.time() - t, loss.item()))
            score = 1 / (1 + loss.item())
            self.logger.info("epoch %d evaluating [time: %.2fs, valid_score: %f]" % (epoch_idx, 0.01, score))
            self.logger.info("valid result: \nrecall@10 : %.4f    mrr@10 : %.4f    ndcg@10 : %.4f" % (score, score / 2, score / 3))
            self._save_checkpoint(epoch_idx)
        return {"recall@10": score}
