"""An operator that the device does not have, with torch's own error message (F19)."""

import torch
from torch import nn


class Pool(nn.Module):
    def forward(self, x):
        raise NotImplementedError(
            "The operator 'aten::_adaptive_avg_pool3d' is not currently implemented for the MPS device. If you want this op to "
            "be considered for addition please comment on https://github.com/pytorch/pytorch/issues/141287 and mention "
            "use-case, that resulted in missing op. As a temporary fix, you can set the environment variable "
            "`PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for this op."
        )


net = nn.Sequential(nn.Conv3d(1, 2, 3), Pool())
optimizer = torch.optim.Adam(net.parameters())
loss = net(torch.randn(2, 1, 6, 6, 6)).mean()
loss.backward()
optimizer.step()
