"""Import of torch.export programs."""
