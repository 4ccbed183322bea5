import torch
from .base_model import BaseModel


class CycleGANModel(BaseModel):
    @staticmethod
    def modify_commandline_options(parser, is_train=True):
        if is_train:
            parser.add_argument('--lambda_A', type=float, default=10.0, help='weight for cycle loss (A -> B -> A)')
        return parser

    def __init__(self, opt):
        BaseModel.__init__(self, opt)
        self.loss_names = ['D_A', 'G_A', 'cycle_A']
        self.model_names = ['G_A', 'D_A']
        self.netG_A, self.netD_A = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.Adam([*self.netG_A.parameters(), *self.netD_A.parameters()], lr=opt.lr)

    def set_input(self, x):
        self.real = x

    def optimize_parameters(self):
        fake = self.netG_A(self.real)
        self.loss_G_A = self.netD_A(fake).square().mean()
        self.loss_cycle_A = (fake - self.real).abs().mean() * self.opt.lambda_A
        self.loss_D_A = (self.netD_A(self.real) - 1).square().mean()
        self.optimizer.zero_grad()
        (self.loss_G_A + self.loss_cycle_A + self.loss_D_A).backward()
        self.optimizer.step()

    def get_current_losses(self):
        return {n: float(getattr(self, 'loss_' + n)) for n in self.loss_names}
