"""The methods that the paper compares with: PANet, PFENet, HSNet and ASNet on a ResNet, and a training-free one."""
