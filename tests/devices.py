"""The devices of this machine that tests loop over: nothing has to be changed where there is a GPU."""

import torch

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
