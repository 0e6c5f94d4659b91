"""What runs a step on tensors: a lean forward for the Llama family, and the modules of transformers for all others."""
