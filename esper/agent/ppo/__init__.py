"""A recurrent PPO policy with masked, factored actions."""
