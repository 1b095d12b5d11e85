"""Host training as a reinforcement learning environment."""
