"""What can answer a prompt: our own engine worker, later any OpenAI-compatible server."""
